"""What a trainer is promised, whatever trainer: one class of tests for all of them."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj

STEPS = 4
STALENESS = 3


class Trained(NamedTuple):
    """What a run ends with, as trees of arrays."""

    params: Any
    slots: Any  # of the gradients' history; None where there is none
    staleness: Any  # the leaf of the state, likewise

    @classmethod
    def of(cls, params, opt_state):
        history = getattr(opt_state, "gradients", None)
        return cls(
            params,
            getattr(history, "slots", None),
            getattr(opt_state, "staleness", None),
        )


def late_by_one(inner):
    """The gradient of the step before, the first one twice: the loop by hand."""

    def init(params):
        return optax.tree.zeros_like(params), jnp.int32(0), inner.init(params)

    def update(grads, state, params=None, **extra_args):
        last, step, inner_state = state
        late = jax.tree.map(
            lambda new, old: jnp.where(step == 0, new, old), grads, last
        )
        updates, inner_state = inner.update(late, inner_state, params)
        return updates, (grads, step + 1, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


def slowed(inner):
    """`inner` with its steps divided by 1 + the staleness that it is told."""
    return optax.chain(inner, dj.scale_by_staleness(dj.modulation.polynomial(1.0)))


def scaled(factor_at):
    """`inner` with its steps multiplied by a function of the step."""
    return lambda inner: optax.chain(inner, optax.scale_by_schedule(factor_at))


WAYS = {
    "as it is": lambda inner: inner,
    "no delay": lambda inner: dj.delayed(inner, 0),
    "delay": lambda inner: dj.delayed(inner, 1),
    "delay, bfloat16": lambda inner: dj.delayed(
        inner, 1, history=dj.ring.cast(jnp.bfloat16)
    ),
    "delay by hand": late_by_one,
    "delay, a law": lambda inner: dj.delayed(slowed(inner), 1),
    # the first step's gradient is fresh
    "delay, a law, by hand": lambda inner: late_by_one(
        scaled(lambda step: jnp.where(step == 0, 1.0, 1 / (1 + 1)))(inner)
    ),
    "told": lambda inner: dj.inject_staleness(slowed(inner)),
    "told, by hand": scaled(lambda _: 1 / (1 + STALENESS)),
}


class Promises:
    """Tests of a trainer; a subclass says how it trains.

    `train(way)` trains `STEPS` steps with the trainer's own optimizer in `WAYS[way]`,
    the parameters sharded over four devices, and returns `Trained`. Where the way is
    "told" it sets the leaf `staleness` of the state to `STALENESS`, before the first
    step or before each.
    """

    @classmethod
    @functools.cache
    def trained(cls, way):
        return cls.train(way)

    def test_no_delay_is_the_plain_optimizer_bit_for_bit(self):
        for leaf, plain in self.pairs("no delay", "as it is"):
            np.testing.assert_array_equal(leaf, plain)

    def test_delay_one_uses_the_gradient_of_the_step_before(self):
        self.assert_close("delay", "delay by hand")
        assert self.distance("delay", "as it is") > 1e-3

    def test_a_history_is_sharded_as_its_parameters(self):
        for way in ("delay", "delay, bfloat16"):
            leaves = jax.tree.leaves(self.trained(way).params)
            slots = jax.tree.leaves(self.trained(way).slots)
            assert not all(leaf.sharding.is_fully_replicated for leaf in leaves)
            for leaf, kept in zip(leaves, slots, strict=True):
                spec = P(None, *leaf.sharding.spec)
                wanted = NamedSharding(leaf.sharding.mesh, spec)
                assert kept.shape == (2, *leaf.shape)
                assert kept.sharding.is_equivalent_to(wanted, kept.ndim)

    def test_a_history_in_bfloat16_is_as_wide(self):
        slots = self.trained("delay, bfloat16").slots
        assert {leaf.dtype.itemsize for leaf in jax.tree.leaves(slots)} == {2}

    def test_a_law_inside_of_the_delay_is_told_the_staleness(self):
        self.assert_close("delay, a law", "delay, a law, by hand")
        assert self.distance("delay, a law", "delay") > 1e-3

    def test_staleness_set_in_the_state_reaches_a_law(self):
        self.assert_close("told", "told, by hand")
        assert int(self.trained("told").staleness) == STALENESS
        assert self.distance("told", "as it is") > 1e-3

    def assert_close(self, way, other):
        for leaf, same in self.pairs(way, other):
            # XLA rounds the two programs differently
            np.testing.assert_allclose(leaf, same, rtol=1e-5, atol=1e-6)

    def distance(self, way, other):
        return max(np.max(np.abs(a - b)) for a, b in self.pairs(way, other))

    def pairs(self, *ways):
        """Each parameter as it is after two runs."""
        ends = (jax.tree.leaves(self.trained(way).params) for way in ways)
        return [tuple(map(as_numpy, pair)) for pair in zip(*ends, strict=True)]


def as_numpy(leaf):
    return np.asarray(leaf).astype(np.float32)
