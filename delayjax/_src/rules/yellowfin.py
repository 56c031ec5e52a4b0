"""YellowFin: momentum and learning rate, tuned at every step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import checks, donation, dtypes, kinds, transforms
from delayjax._src.rules import norms, total_momentum

_LEAST = 1e-30  # a smaller |g|^2 counts as this number: its inverse must be finite


class YellowFinState(NamedTuple):
    """State of `yellowfin`. Numbers without a shape are float32 []."""

    step: jax.Array  # updates done, int32 []
    # of the last update
    momentum: jax.Array  # beta
    learning_rate: jax.Array  # eta
    # tuned, before slow start and closed loop
    target: jax.Array  # of the momentum
    rate: jax.Array
    # measured; means without the bias of their start
    window: jax.Array  # the last |g|^2, 0 where there is none yet, float32 [window]
    log_least: jax.Array  # mean of the log of the least number in the window
    largest: jax.Array  # mean of the largest number in the window
    norm: jax.Array  # mean of |g|
    square: jax.Array  # mean of |g|^2
    distance: jax.Array  # mean of D
    gradient: Any  # mean of g, as the parameters, at least float32
    velocity: Any  # x_t - x_{t-1}, as the parameters
    loop: Any  # `Loop`; () unless closed_loop


@kinds.checked
def yellowfin(
    *,
    decay: kinds.Share = 0.999,
    window: kinds.PositiveInt = 20,
    factor: kinds.Positive = 1.0,
    smoothing: kinds.Share = 0.0,
    clip: bool = False,
    closed_loop: bool = False,
    gain: ArrayLike = 0.01,
    coordinates: int = 1024,
) -> optax.GradientTransformationExtraArgs:
    """YellowFin: momentum SGD that tunes its momentum and learning rate.

    From all coordinates together it measures, with moving means E that are corrected
    for their start at 0,

        h     = |g|^2
        h_min = exp E[log min of the last `window` h],   h_max = E[max of them]
        C     = max(E|g|^2 - |E g|^2, 1e-6)              variance
        D     = E[ E|g| / E|g|^2 ]                       distance to the optimum

    and takes the momentum which minimizes beta D^2 + eta^2 C, with k = h_max / h_min:

        (1 - z)^3 = z D^2 h_min^2 / (2 C)
        beta = max(z^2, ((sqrt(k) - 1) / (sqrt(k) + 1))^2)
        eta  = (1 - sqrt(beta))^2 / h_min

    At step t = 0, 1, ... the learning rate is multiplied by
    factor * min(1, (t + 1) / (10 window)), a slow start. Then

        v <- beta v - eta g,    x <- x + v.

    This is an optimizer, in place of `optax.sgd`. It tunes from its first step on; the
    released code takes that step with fixed numbers.

    With `closed_loop` the tuned beta is the target of the total momentum, delay
    included, and the momentum applied follows as in `closed_loop_momentum`. The
    estimate uses the learning rate of step t in place of eta_s: during the slow start
    eta_s was smaller by a share of about (tau + 1) / t.

    Args:
        decay: the decay of the means, in [0, 1). May be traced.
        window: the number of last h, for their least and their largest. Static.
        factor: the factor of the learning rate, positive. May be traced.
        smoothing: the decay of moving means of beta and eta, in [0, 1): the paper
            smooths with `decay`; the released code does not smooth, as with 0. May be
            traced.
        clip: whether to scale g down to a norm of sqrt(h_max), as it was before this
            step. The window then takes |g|^2 before the scaling, at most 100 h_max.
            (The factors come from the released code, the order is ours.)
        closed_loop: whether to correct for the momentum of delay.
        gain: the gain of the closed loop, as in `closed_loop_momentum`.
        coordinates: for the closed loop, as in `closed_loop_momentum`.

    Returns:
        A transformation whose state is two trees like the parameters, a window of
        numbers, and with `closed_loop` three vectors of the coordinates sampled. It has
        `momentum` and `learning_rate` for logging. With `closed_loop`, `update` needs
        one `staleness=` and `stale_params=`, which `delayed(..., keep_params=True)`
        supplies.

    Example:
        >>> tx, x = yellowfin(window=1, decay=0.5), jnp.array([3.0, 4.0])
        >>> update, state = tx.update(x, tx.init(x))
        >>> print(update)  # no variance yet: eta = 1/|g|^2, a tenth for the slow start
        [-0.012 -0.016]
        >>> print(f"{state.momentum:.2f} {state.learning_rate:.4f}")
        0.00 0.0040

    References:
        Zhang and Mitliagkas, YellowFin and the art of momentum tuning, SysML 2019,
        arXiv:1706.03471.
    """
    total = total_momentum.ClosedLoop("yellowfin", gain, coordinates)

    def init_fn(params):
        gradient = dtypes.wide_zeros(params)
        zero = norms.squared_norm(gradient)  # of the type that a norm will have

        def nothing():
            return jnp.zeros_like(zero)

        return YellowFinState(
            step=jnp.zeros((), jnp.int32),
            momentum=nothing(),
            learning_rate=nothing(),
            target=nothing(),
            rate=nothing(),
            window=jnp.broadcast_to(nothing(), (window,)),
            log_least=nothing(),
            largest=nothing(),
            norm=nothing(),
            square=nothing(),
            distance=nothing(),
            gradient=gradient,
            velocity=jax.tree.map(jnp.zeros_like, params),
            loop=total.init(params) if closed_loop else (),
        )

    def update_fn(
        updates, state, params=None, *, staleness=None, stale_params=None, **extra_args
    ):
        checks.check_held("window", window, len(state.window))
        checks.check_held("closed_loop", closed_loop, bool(state.loop))
        step, real = state.step + 1, state.window.dtype
        weight, smooth = (_weight(d, step, real) for d in (decay, smoothing))
        gradient = optax.tree.cast_like(updates, state.gradient)

        def mean(before, now):
            share, now, before = dtypes.in_one_dtype(weight, now, before)
            return before + share * (now - before)

        h = norms.squared_norm(gradient)
        if clip:
            # by h_max before this step; at the first step there is none
            largest = jnp.where(state.step == 0, jnp.inf, state.largest)
            shrink = jnp.minimum(1.0, jnp.sqrt(largest / jnp.maximum(h, _LEAST)))
            gradient = dtypes.scaled(shrink, gradient)
            h = jnp.minimum(h, 100.0 * largest)

        window_now = jnp.concatenate([state.window[1:], h[None]])
        most = window_now.max()
        # a slot without a gradient, or with a gradient of 0, has no curvature
        least = window_now.min(initial=most, where=window_now > 0)
        log_least = mean(state.log_least, jnp.log(jnp.maximum(least, _LEAST)))
        largest = mean(state.largest, most)

        norm_square = norms.squared_norm(gradient)
        norm = mean(state.norm, jnp.sqrt(norm_square))
        square = mean(state.square, norm_square)
        mean_gradient = jax.tree.map(
            lambda m, g: mean(m, g).astype(m.dtype), state.gradient, gradient
        )
        variance = jnp.maximum(square - norms.squared_norm(mean_gradient), 1e-6)
        distance = mean(state.distance, norm / jnp.maximum(square, _LEAST))

        tuned = _single_step(variance, distance, jnp.exp(log_least), largest)
        target, rate = (
            before + smooth * (now - before)
            for before, now in zip((state.target, state.rate), tuned, strict=True)
        )
        slow_start = jnp.minimum(1.0, step.astype(real) / (10 * window))
        learning_rate = (rate * factor * slow_start).astype(real)

        momentum, loop = donation.copied(target), state.loop
        if closed_loop:
            late = total.take(gradient, staleness, stale_params)
            gradient, *_ = late
            loop, measured = total.measure(state.loop, learning_rate, late)
            momentum = total.steer(state.momentum, target, measured)
        velocity = total_momentum.rolled(
            state.velocity, momentum, learning_rate, gradient
        )
        new_state = YellowFinState(
            step=step,
            momentum=momentum,
            learning_rate=learning_rate,
            target=target,
            rate=rate,
            window=window_now,
            log_least=log_least,
            largest=largest,
            norm=norm,
            square=square,
            distance=distance,
            gradient=mean_gradient,
            velocity=velocity,
            loop=loop,
        )
        return optax.tree.cast_like(velocity, updates), new_state

    return transforms.stateful(YellowFinState, init_fn, update_fn)


def _weight(decay: ArrayLike, step: jax.Array, dtype: Any) -> jax.Array:
    """The weight of the current value in a moving mean without bias: 1 at step 1.

    It gives the same as a division by 1 - decay^step at the end. In float32 this
    division, and 1 - decay^step itself, would lose the third digit of a mean of
    logarithms.
    """
    decay = jnp.asarray(decay, dtype)
    return (1 - decay) / -jnp.expm1(step.astype(dtype) * jnp.log(decay))


def _single_step(
    variance: jax.Array, distance: jax.Array, h_min: jax.Array, h_max: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Beta and eta of the cubic, by r = 1 - sqrt(beta).

    r^3 + p r = p has one real root. With s = sqrt(p / 3) it is
    2 s sinh(asinh(3 / (2 s)) / 3), in which nothing cancels and nothing overflows.
    """
    s = jnp.maximum(distance * h_min / jnp.sqrt(6.0 * variance), 1e-15)
    r = 2.0 * s * jnp.sinh(jnp.arcsinh(1.5 / s) / 3.0)
    r = jnp.minimum(r, 2.0 / (jnp.sqrt(h_max / h_min) + 1.0))
    return (1.0 - r) ** 2, r**2 / h_min
