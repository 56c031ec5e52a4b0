"""Total momentum, explicit and by delay: measured, and steered to a target."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from delayjax._src.ground import (
    axes,
    checks,
    donation,
    dtypes,
    extras,
    transforms,
    trees,
)

MOST = 0.9999
"""The largest momentum that is applied, of either sign."""

_KEEP = "wrap the whole chain, `delayed(optax.chain(...), delay, keep_params=True)`"


class Loop(NamedTuple):
    """The measurement of total momentum. x_s is the last `stale_params`."""

    estimate: jax.Array  # of the total momentum, 0 before the first one, float32 []
    age: jax.Array  # staleness of the last gradient, int32 []
    alike: jax.Array  # the number of gradients of that age in a row, up to 3, int32 []
    # the sampled coordinates of all leaves, float32 or complex64 [sampled]
    point: jax.Array  # x_s
    move: jax.Array  # x_s - x_{s-1}
    gradient: jax.Array  # g(x_s)


class Late(NamedTuple):
    """A gradient that is late, and where it was taken."""

    gradients: Any
    staleness: jax.Array  # int32 []
    params: Any


class ClosedLoopMomentumState(NamedTuple):
    """State of `closed_loop_momentum`."""

    step: jax.Array  # updates done, int32 []
    momentum: jax.Array  # beta, applied by the last update, float32 []
    loop: Loop
    velocity: Any  # x_t - x_{t-1}, as the parameters


def closed_loop_momentum(
    learning_rate: optax.ScalarOrSchedule,
    target: ArrayLike,
    *,
    gain: ArrayLike = 0.01,
    coordinates: int = 1024,
) -> optax.GradientTransformationExtraArgs:
    """Momentum SGD whose total momentum, delay included, is steered to a target.

    Delay acts as momentum. The total momentum is measured, as the median over
    coordinates of

        beta_hat = (x_{s+1} - x_s + eta g(x_s)) / (x_s - x_{s-1}),    s = t - tau - 1

    and the explicit momentum follows by

        beta <- clip(beta + gain (target - beta_hat), -1, 1)
        v    <- beta v - eta g(x_{t-tau})
        x    <- x + v

    It starts at 0, falls below 0 where the delay alone has more momentum than the
    target, and is kept within 0.9999 of 0. This is the loop of closed-loop YellowFin,
    with a fixed learning rate and target: `yellowfin(closed_loop=True)` tunes both.

    The equation needs three neighboring versions. So beta_hat is measured where three
    gradients in a row have the same staleness. Elsewhere beta stays as it is. A
    coordinate that did not move is left out of the median. A coordinate that oscillates
    has no constant ratio: the estimate settles where most coordinates do not.

    Args:
        learning_rate: eta, a number or a schedule.
        target: the total momentum, in (-1, 1). May be traced.
        gain: per update, non-negative; 0.01 in the paper. 0 measures alone. May be
            traced.
        coordinates: the most coordinates of a leaf that enter the median, evenly
            spaced. The median of all would sort all parameters at every step. Static.

    Returns:
        A transformation whose state is one tree like the parameters and three vectors
        of the coordinates sampled; no past parameters are kept, whatever the delay.
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
        >>> found = state.inner_state
        >>> print(f"{found.loop.estimate:.2f} {found.momentum:.2f}")
        0.50 0.41

    References:
        Zhang and Mitliagkas, YellowFin and the art of momentum tuning, 2017,
        arXiv:1706.03471 (closed loop); Mitliagkas, Zhang, Hadjis and Re, Asynchrony
        begets momentum, 2016, arXiv:1605.09774.
    """
    if not callable(learning_rate):
        checks.check_number("learning_rate", learning_rate)
    checks.check_between("target", target, -1.0, 1.0)
    checks.check_number("gain", gain)
    checks.check_bound("coordinates", coordinates, at_least=1)

    def init_fn(params):
        loop = start(params, coordinates)
        return ClosedLoopMomentumState(
            step=jnp.zeros((), jnp.int32),
            momentum=jnp.zeros_like(loop.estimate),
            loop=loop,
            velocity=jax.tree.map(jnp.zeros_like, params),
        )

    def update_fn(
        updates, state, params=None, *, staleness=None, stale_params=None, **extra_args
    ):
        del params, extra_args
        name = "closed_loop_momentum"
        extras.check_gradients(name, updates)
        rate = transforms.rate_at(learning_rate, state.step)
        late = check(name, updates, staleness, stale_params)
        loop, found = measure(state.loop, rate, late, coordinates)
        momentum = steer(state.momentum, target, gain, found)
        velocity = roll(state.velocity, momentum, rate, late.gradients)
        updates = optax.tree.cast_like(velocity, updates)
        step = state.step + 1
        return updates, ClosedLoopMomentumState(step, momentum, loop, velocity)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def start(params: Any, coordinates: int) -> Loop:
    """The loop before any gradient."""
    kind = dtypes.wide_dtype(*jax.tree.leaves(params))  # complex if one is
    nothing = _sample(optax.tree.zeros_like(params), coordinates, kind)
    zero = nothing.sum().real  # of the type that the median will have
    counts = jnp.full((), -1, jnp.int32), jnp.zeros((), jnp.int32)
    age, alike = axes.typed_like(counts, (zero, zero))
    return Loop(
        estimate=zero,
        age=age,
        alike=alike,
        point=nothing,
        move=jnp.zeros_like(nothing),
        gradient=jnp.zeros_like(nothing),
    )


def check(name: str, updates: Any, staleness: Any, stale_params: Any) -> Late:
    """The gradients with their origin, or errors that name what is missing."""
    extras.require(staleness, "staleness", name, _KEEP)
    extras.require(stale_params, "stale_params", name, _KEEP)
    updates, age = extras.take_staleness(name, updates, staleness)
    if not trees.is_leaf(age):
        raise TypeError(
            f"`{name}` needs one `staleness` for all leaves, got {staleness!r}: give"
            " each part a rule and a delay of its own, with optax.partition."
        )
    stale_params = trees.masked_like(stale_params, updates)
    extras.check_shapes(name, updates, stale_params=stale_params)
    return Late(updates, age, stale_params)


def measure(
    loop: Loop, rate: ArrayLike, late: Late, coordinates: int
) -> tuple[Loop, jax.Array]:
    """The next loop, and beta_hat; NaN where it cannot be measured."""
    dtype = loop.point.dtype
    point = _sample(late.params, coordinates, dtype)
    move = point - loop.point
    # `loop` is still about s: x_s, x_s - x_{s-1} and g(x_s)
    moved = loop.move != 0
    ratios = (move + rate * loop.gradient) / jnp.where(moved, loop.move, 1)
    ratios = ratios.real  # of complex moves: the part along the move before
    found = _median(ratios, moved).astype(loop.estimate.dtype)
    alike = jnp.where(late.staleness == loop.age, loop.alike + 1, 1)
    found = jnp.where((alike >= 3) & jnp.isfinite(found), found, jnp.nan)
    loop = Loop(
        estimate=jnp.where(jnp.isnan(found), loop.estimate, found),
        age=axes.typed_like(donation.copied(late.staleness), loop.age),
        alike=jnp.minimum(alike, 3),
        point=point,
        move=move,
        gradient=_sample(late.gradients, coordinates, dtype),
    )
    return loop, found


def steer(
    momentum: jax.Array, target: ArrayLike, gain: ArrayLike, found: jax.Array
) -> jax.Array:
    """The next beta, by beta_hat; the same one where that is NaN."""
    steered = jnp.clip(momentum + gain * (target - found), -MOST, MOST)
    return jnp.where(jnp.isnan(found), momentum, steered.astype(momentum.dtype))


def roll(velocity: Any, momentum: ArrayLike, rate: ArrayLike, gradients: Any) -> Any:
    """The next velocity, v <- beta v - eta g, in the precision of v."""

    def one(velocity, gradient):
        beta, eta, v, g = dtypes.alike(momentum, rate, velocity, gradient)
        return (beta * v - eta * g).astype(velocity.dtype)

    return jax.tree.map(one, velocity, gradients)


def _median(values: jax.Array, counted: jax.Array) -> jax.Array:
    """The median of the values that are counted; infinite if there is none."""
    if not values.size:
        return jnp.asarray(jnp.inf, values.dtype)
    ordered = jnp.sort(jnp.where(counted, values, jnp.inf))
    last = counted.sum() - 1
    return (ordered[last // 2] + ordered[(last + 1) // 2]) / 2


def _sample(tree: Any, coordinates: int, dtype: Any) -> jax.Array:
    """At most so many coordinates of each leaf, evenly spaced, as one new vector."""

    def of_leaf(leaf):
        leaf = jnp.asarray(leaf)
        place = jax.typeof(leaf).sharding
        if any(place.spec):  # over Explicit axes, along which nothing can be sliced
            whole = NamedSharding(place.mesh, PartitionSpec())
            leaf = jax.sharding.reshard(leaf, whole)
        flat = jnp.ravel(leaf)
        return flat[:: max(1, -(-leaf.size // coordinates))].astype(dtype)

    vectors = [of_leaf(leaf) for leaf in jax.tree.leaves(tree)]
    return donation.copied(jnp.concatenate([jnp.zeros(0, dtype), *vectors]))
