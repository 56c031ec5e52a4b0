"""ADPSGD: local SGD that adapts its period to the distance between the models."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.averaging import means
from delayjax._src.averaging.step_then_mix import step_then_mix
from delayjax._src.ground import axes, dtypes, kinds, transforms


class AdaptivePeriod(NamedTuple):
    """Memory of `adaptive_period`."""

    period: jax.Array  # H, in steps, int32 []
    local_steps: jax.Array  # since the last average, int32 []
    disagreement: jax.Array  # V at the last average, float []
    sampled: jax.Array  # the sum of V / eta over the averages that give C2, float []
    samples: jax.Array  # the number of these averages, int32 []


@kinds.checked
def adaptive_period(
    inner: transforms.Transformation,
    learning_rate: kinds.PositiveRate,
    *,
    sampling_steps: kinds.Count,
    period: kinds.PositiveInt = 4,
    axis_name: axes.AxisName = "workers",
) -> optax.GradientTransformationExtraArgs:
    """ADPSGD: local SGD that adapts its period to how far the models differ.

        V   = (1/P) sum_i |x'^i - xm|^2              at each average
        C2  = mean of V / eta over the averages of the first `sampling_steps` steps
        H  <- H + 1  if V < 0.7 eta C2,   H - 1  if V > 1.3 eta C2    from then on

    H is at least 1.

    Args:
        inner: each worker's own optimizer, as in `local_sgd`.
        learning_rate: eta of `inner`, a positive number or a schedule of the step.
        sampling_steps: at least 1; a quarter of the run in the paper. May be traced.
        period: H at the start, at least 1.
        axis_name: the workers' axis, or several.

    Example:
        >>> tx = adaptive_period(optax.sgd(1.0), 1.0, sampling_steps=1, period=1)
        >>> def two_steps(grad):  # the models differ less after the second step
        ...     _, state = tx.update(grad, tx.init(grad), 0 * grad)
        ...     return tx.update(0.1 * grad, state, 0 * grad)[1].memory.period
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        Array([2, 2], dtype=int32)

    References:
        Jiang and Agrawal, Adaptive periodic averaging, 2020, arXiv:2007.06134; factors
        and first H as commonly reported.
    """

    def begin(params):
        kind = dtypes.real_dtype(params)
        return AdaptivePeriod(
            period=jnp.asarray(period, jnp.int32),
            local_steps=jnp.zeros((), jnp.int32),
            disagreement=jnp.zeros((), kind),
            sampled=jnp.zeros((), kind),
            samples=jnp.zeros((), jnp.int32),
        )

    def mix(step, clock, before, model):
        kind = clock.disagreement.dtype
        rate = jnp.asarray(transforms.rate_at(learning_rate, step), kind)

        def average(model, clock):
            middle = means.mean(model, axis_name)
            apart = optax.tree.sub(model, middle)
            squares = jnp.asarray(optax.tree.norm(apart, squared=True), kind)
            spread = means.mean(squares, axis_name)
            sampling = step < sampling_steps
            goal = rate * clock.sampled / jnp.maximum(clock.samples, 1)
            change = (spread < 0.7 * goal).astype(jnp.int32) - (spread > 1.3 * goal)
            known = ~sampling & (clock.samples > 0)
            clock = AdaptivePeriod(
                period=jnp.maximum(clock.period + jnp.where(known, change, 0), 1),
                local_steps=jnp.zeros_like(clock.local_steps),
                disagreement=spread,
                sampled=clock.sampled + jnp.where(sampling, spread / rate, 0),
                samples=clock.samples + sampling.astype(jnp.int32),
            )
            return axes.vary(middle, axis_name=axis_name), clock

        def go_on(model, clock):
            return model, clock._replace(local_steps=clock.local_steps + 1)

        due = clock.local_steps + 1 >= clock.period
        model = axes.vary(model, axis_name=axis_name)
        return jax.lax.cond(due, average, go_on, model, clock)

    return step_then_mix("averaging.adaptive_period", inner, mix, axis_name, begin)
