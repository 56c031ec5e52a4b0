"""Measures the total momentum, explicit and by delay, and steers it to a target."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from delayjax._src.ground import axes, checks, donation, dtypes, extras, kinds

MOST = 0.9999
"""The largest momentum that is applied, of either sign."""

_KEEP = "wrap the whole chain, `delayed(optax.chain(...), delay, keep_params=True)`"


class Loop(NamedTuple):
    """The measurement of total momentum. x_s is the last `stale_params`."""

    estimate: jax.Array  # of the total momentum, 0 if none is measured yet, float32 []
    age: jax.Array  # staleness of the last gradient, int32 []
    same_age: jax.Array  # gradients in a row with that age, at most 3, int32 []
    # the sampled coordinates of all leaves, float32 or complex64 [sampled]
    point: jax.Array  # x_s
    move: jax.Array  # x_s - x_{s-1}
    gradient: jax.Array  # g(x_s)


@kinds.checked
@dataclasses.dataclass(frozen=True, eq=False)
class ClosedLoop:
    """A loop from the measured total momentum back to the explicit momentum.

    The equations are in the docstring of `closed_loop_momentum`.
    """

    rule: str  # the rule with this loop, for errors
    gain: kinds.NonNegative  # per update
    coordinates: kinds.PositiveInt  # the largest number of each leaf in the median

    def init(self, params: Any) -> Loop:
        """The loop before any gradient."""
        kind = dtypes.wide_dtype(*jax.tree.leaves(params))  # complex if one is
        nothing = _sample(optax.tree.zeros_like(params), self.coordinates, kind)
        zero = nothing.sum().real  # of the type that the median will have
        counts = jnp.full((), -1, jnp.int32), jnp.zeros((), jnp.int32)
        age, same_age = axes.typed_like(counts, (zero, zero))
        return Loop(
            estimate=zero,
            age=age,
            same_age=same_age,
            point=nothing,
            move=jnp.zeros_like(nothing),
            gradient=jnp.zeros_like(nothing),
        )

    def take(
        self, gradients: Any, staleness: Any, stale_params: Any
    ) -> tuple[Any, jax.Array, Any]:
        """The gradients, their staleness and where they were taken, checked."""
        gradients, age = extras.staleness_of(
            self.rule, gradients, staleness, _KEEP, one=True, mean=False
        )
        point = extras.stale_params_of(self.rule, gradients, stale_params, _KEEP)
        return gradients, age, point

    def measure(
        self, loop: Loop, rate: ArrayLike, late: tuple[Any, jax.Array, Any]
    ) -> tuple[Loop, jax.Array]:
        """The next loop, and beta_hat; NaN where it cannot be measured."""
        gradients, staleness, stale_params = late
        dtype = loop.point.dtype
        point = _sample(stale_params, self.coordinates, dtype)
        sizes = loop.point.size, point.size
        checks.check_held("coordinates", self.coordinates, *sizes)
        move = point - loop.point
        # `loop` is still about s: x_s, x_s - x_{s-1} and g(x_s)
        moved = loop.move != 0
        ratios = (move + rate * loop.gradient) / jnp.where(moved, loop.move, 1)
        ratios = ratios.real  # of complex moves: the part along the last move
        measured = _median(ratios, moved).astype(loop.estimate.dtype)
        same_age = jnp.where(staleness == loop.age, loop.same_age + 1, 1)
        measured = jnp.where(
            (same_age >= 3) & jnp.isfinite(measured), measured, jnp.nan
        )
        loop = Loop(
            estimate=jnp.where(jnp.isnan(measured), loop.estimate, measured),
            age=axes.typed_like(donation.copied(staleness), loop.age),
            same_age=jnp.minimum(same_age, 3),
            point=point,
            move=move,
            gradient=_sample(gradients, self.coordinates, dtype),
        )
        return loop, measured

    def steer(
        self, momentum: jax.Array, target: ArrayLike, measured: jax.Array
    ) -> jax.Array:
        """The next beta, from beta_hat; the same beta where beta_hat is NaN."""
        steered = jnp.clip(momentum + self.gain * (target - measured), -MOST, MOST)
        return jnp.where(jnp.isnan(measured), momentum, steered.astype(momentum.dtype))


def rolled(velocity: Any, momentum: ArrayLike, rate: ArrayLike, gradients: Any) -> Any:
    """The next velocity, v <- beta v - eta g, in the precision of v."""

    def one(velocity, gradient):
        beta, eta, v, g = dtypes.in_one_dtype(momentum, rate, velocity, gradient)
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
    """Evenly spaced coordinates, at most `coordinates` of a leaf, as one new vector."""

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
