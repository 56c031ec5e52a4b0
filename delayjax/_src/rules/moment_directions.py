"""PipeOptim's directions: the next update of an optimizer, by its moments."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import dtypes, kinds, transforms
from delayjax._src.rules.predict_weights import Direction

_EPS = 1e-8


@kinds.checked
def sgd_direction(learning_rate: kinds.Rate, momentum: kinds.Share) -> Direction:
    """PipeOptim's direction of SGD with momentum, for `predict_weights`.

    The next update, if the last gradient g comes again:

        Delta = -eta (beta b + g),    b = beta b_{-1} + g

    with b the momentum after the last update, and b_{-1} before it.

    Args:
        learning_rate: eta, a number, or a schedule, which receives the updates done.
            May be traced.
        momentum: the beta of the optimizer, in [0, 1): `optax.sgd` and `optax.trace` do
            not keep it in their state. May be traced.

    Returns:
        A `direction`. `predict_weights` needs an optimizer with one `optax.trace` of
        all parameters.

    Example:
        >>> from delayjax import gradient_params, predict_weights
        >>> tx = predict_weights(
        ...     optax.sgd(1.0, 0.5), 2, direction=sgd_direction(1.0, 0.5))
        >>> _, state = tx.update(jnp.ones(()), tx.init(jnp.zeros(())))
        >>> print(gradient_params(state, jnp.asarray(-1.0)))  # -1 - 2 (0.5 + 1)
        -4.0

    References:
        Guan et al., PipeOptim, 2023, arXiv:2312.00839, as in its code
        (`sgd_load_predicted_weights`), without dampening.
    """

    def direction(before, after, step):
        old, new = (_moments(optax.TraceState, state) for state in (before, after))
        rate = transforms.rate_at(learning_rate, step)

        def expected(b, last):
            b, last = map(dtypes.wide, (b, last))
            g = b - dtypes.times(momentum, last)
            return -dtypes.times(rate, dtypes.times(momentum, b) + g)

        return jax.tree.map(expected, new.trace, old.trace)

    return direction


@kinds.checked
def adam_direction(
    learning_rate: kinds.Rate,
    *,
    b1: kinds.Share = 0.9,
    b2: kinds.Share = 0.999,
) -> Direction:
    """PipeOptim's direction of Adam and AdamW, for `predict_weights`.

    It is the last update, computed from the moments that the optimizer keeps, but with
    the learning rate of the next update, and without weight decay:

        Delta = -eta mhat / (sqrt(vhat) + 1e-8)

    Args:
        learning_rate: eta, a number, or a schedule, which receives the updates done.
            May be traced.
        b1: the b1 of the optimizer, in [0, 1): `optax.adam` does not keep it in its
            state. May be traced.
        b2: the b2 of the optimizer, in [0, 1). May be traced.

    Returns:
        A `direction`. `predict_weights` needs an optimizer with one
        `optax.scale_by_adam` of all parameters. Rules with the same state and another
        move (`optax.adamax`, `optax.radam`, `optax.lamb`, another eps) are not refused,
        and get Adam's direction.

    Example:
        >>> from delayjax import gradient_params, predict_weights
        >>> tx = predict_weights(optax.adam(0.5), 2, direction=adam_direction(0.5))
        >>> _, state = tx.update(jnp.ones(()), tx.init(jnp.zeros(())))
        >>> round(float(gradient_params(state, jnp.asarray(-0.5))), 4)  # -0.5 - 2 0.5
        -1.5

    References:
        Guan et al., PipeOptim, 2023, arXiv:2312.00839, as in its code
        (`load_predicted_weights`).
    """

    def direction(before, after, step):
        state = _moments(optax.ScaleByAdamState, after)
        rate = transforms.rate_at(learning_rate, step)
        count = state.count.astype(jnp.result_type(float))
        mean, square = (
            optax.tree.bias_correction(jax.tree.map(dtypes.wide, moment), decay, count)
            for moment, decay in ((state.mu, b1), (state.nu, b2))
        )

        def expected(m, v):
            m, v = dtypes.in_one_dtype(m, v)
            return -dtypes.times(rate, m / (jnp.sqrt(v) + _EPS))

        return jax.tree.map(expected, mean, square)

    return direction


def _moments(kind: Any, state: Any) -> Any:
    """The state of `optax.trace` or `optax.scale_by_adam` in an optimizer's state."""
    factory = {optax.TraceState: "trace", optax.ScaleByAdamState: "scale_by_adam"}
    what = f"`optax.{factory[kind]}` for this `direction`"
    remedy = "leave out `direction`, for the last update"
    return transforms.state_in(state, kind, what, remedy, name="inner")
