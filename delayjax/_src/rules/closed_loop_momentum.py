"""Momentum whose total, delay included, is steered to a target."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import kinds, transforms
from delayjax._src.rules.total_momentum import ClosedLoop, Loop, rolled


class ClosedLoopMomentumState(NamedTuple):
    """State of `closed_loop_momentum`."""

    step: jax.Array  # updates done, int32 []
    momentum: jax.Array  # beta, applied by the last update, float32 []
    loop: Loop
    velocity: Any  # x_t - x_{t-1}, as the parameters


@kinds.checked
def closed_loop_momentum(
    learning_rate: kinds.Rate,
    target: kinds.Correlation,
    *,
    gain: ArrayLike = 0.01,
    coordinates: int = 1024,
) -> optax.GradientTransformationExtraArgs:
    """Momentum SGD whose total momentum, delay included, is steered to a target.

    Delay acts as momentum. The total momentum is measured, as the median over
    coordinates of

        beta_hat = (x_{s+1} - x_s + eta_s g(x_s)) / (x_s - x_{s-1}),    s = t - tau - 1

    and the explicit momentum follows by

        beta <- clip(beta + gain (target - beta_hat), -1, 1)
        v    <- beta v - eta_t g(x_{t-tau})
        x    <- x + v

    beta starts at 0, falls below 0 where the delay alone has more momentum than the
    target, and stays between -0.9999 and 0.9999. This is the loop of closed-loop
    YellowFin, with a fixed learning rate and target: `yellowfin(closed_loop=True)`
    tunes both.

    The equation needs three neighboring versions. So beta_hat is measured where three
    gradients in a row have the same staleness. Elsewhere beta stays as it is. A
    coordinate that did not move is left out of the median. A coordinate that oscillates
    has no constant ratio, so the estimate settles only if most coordinates do not
    oscillate.

    Args:
        learning_rate: eta, a number or a schedule.
        target: the total momentum, in (-1, 1). May be traced.
        gain: the gain per update, non-negative; 0.01 in the paper. At 0 the rule only
            measures. May be traced.
        coordinates: the most coordinates of a leaf that enter the median, evenly
            spaced. The median of all would sort all parameters at every step. Static.

    Returns:
        A transformation whose state is one tree like the parameters and three vectors
        of the coordinates sampled; no past parameters are kept, for any delay.
        The state has `momentum` (beta) and `loop.estimate` (beta_hat). `update` needs
        one `staleness=` for all leaves and `stale_params=`, which `delayed(...,
        keep_params=True)` supplies.

    Example:
        >>> from delayjax import delayed
        >>> tx = delayed(closed_loop_momentum(0.02, 0.5), 4, keep_params=True)
        >>> x = jnp.array([1.0, 2.0])
        >>> def step(carry, _):
        ...     x, state = carry
        ...     updates, state = tx.update(x, state, x)  # the gradient of |x|^2 / 2
        ...     return (x + updates, state), None
        >>> (x, state), _ = jax.lax.scan(step, (x, tx.init(x)), length=900)
        >>> momentum = state.inner_state
        >>> print(f"{momentum.loop.estimate:.2f} {momentum.momentum:.2f}")
        0.50 0.41

    References:
        Zhang and Mitliagkas, YellowFin and the art of momentum tuning, SysML 2019,
        arXiv:1706.03471 (closed loop); Mitliagkas, Zhang, Hadjis and Re, Asynchrony
        begets momentum, 2016, arXiv:1605.09774.
    """
    total = ClosedLoop("closed_loop_momentum", gain, coordinates)

    def init_fn(params):
        loop = total.init(params)
        return ClosedLoopMomentumState(
            step=jnp.zeros((), jnp.int32),
            momentum=jnp.zeros_like(loop.estimate),
            loop=loop,
            velocity=jax.tree.map(jnp.zeros_like, params),
        )

    def update_fn(
        updates, state, params=None, *, staleness=None, stale_params=None, **extra_args
    ):
        rate = transforms.rate_at(learning_rate, state.step)
        late = total.take(updates, staleness, stale_params)
        s = jnp.maximum(state.step - late[1] - 1, 0)  # nothing is measured before 0
        eta_s = transforms.rate_at(learning_rate, s)
        loop, measured = total.measure(state.loop, eta_s, late)
        momentum = total.steer(state.momentum, target, measured)
        velocity = rolled(state.velocity, momentum, rate, late[0])
        updates = optax.tree.cast_like(velocity, updates)
        step = state.step + 1
        return updates, ClosedLoopMomentumState(step, momentum, loop, velocity)

    return transforms.stateful(ClosedLoopMomentumState, init_fn, update_fn)
