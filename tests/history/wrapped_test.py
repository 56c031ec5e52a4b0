"""What can be behind a stale gradient, and the arguments that it receives."""

import jax
import jax.numpy as jnp
import optax
import pytest

import delayjax as dj
from tests.history.driving import (
    MODULATED,
    PARAMS,
    SGD,
    assert_close,
    gradient,
    updates_of,
)

REFUSED = {
    "SAM": (optax.contrib.sam(SGD, SGD), r"optax.contrib.sam\(delayed\("),
    "L-BFGS": (optax.lbfgs(), "today's"),
    "L-BFGS without a search": (optax.scale_by_lbfgs(), "reads the gradient alone"),
    "backtracking": (
        optax.chain(SGD, optax.scale_by_backtracking_linesearch(5)),
        "a learning rate that is fixed",
    ),
    "private": (
        optax.contrib.differentially_private_aggregate(1.0, 1.0, jax.random.key(0)),
        r"optax.chain\(differentially_private_aggregate\(...\), delayed\(",
    ),
}


def deep_in(tx):
    """`tx`, deep inside of other transformations."""
    whole = optax.masked(optax.chain(optax.clip(1.0), tx), {"w": True, "b": False})
    return optax.MultiSteps(optax.apply_if_finite(whole, 3), 2)


class OfAUser:
    """A transformation of a user's class, with a user's state."""

    def __init__(self, tx):
        self.tx = tx

    def init(self, params):
        return {"mine": [self.tx.init(params)]}

    def update(self, updates, state, params=None, **extra_args):
        raise NotImplementedError


NESTS = {"alone": lambda tx: tx, "nested": deep_in, "a user's": OfAUser}


@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_a_fresh_gradient_is_refused(name, nest):
    inner, remedy = REFUSED[name]
    with pytest.raises(ValueError, match=rf"`inner` must not hold optax's .*{remedy}"):
        dj.delayed(NESTS[nest](inner), 2).init(PARAMS)


@pytest.mark.parametrize("wrapper", [dj.delayed, dj.delivered])
def test_lookahead_is_refused(wrapper):
    remedy = rf"lookahead: .* optax.lookahead\({wrapper.__name__}\(fast_optimizer"
    pairs = optax.LookaheadParams.init_synced(PARAMS)
    for nest in ("alone", "a user's"):
        tx = wrapper(NESTS[nest](optax.lookahead(SGD, 5, 0.5)), 2)
        with pytest.raises(ValueError, match=remedy):
            tx.init(pairs)


def test_the_remedies_run():
    grads = jnp.cos(jnp.arange(3.0))
    pairs = optax.LookaheadParams.init_synced(jnp.arange(3.0))
    ahead = optax.lookahead(dj.delayed(SGD, 1), 5, 0.5)
    updates, _ = ahead.update(grads, ahead.init(pairs), pairs)
    assert_close(updates.fast, -0.1 * grads)
    sharp = optax.contrib.sam(dj.delayed(SGD, 1), SGD, opaque_mode=True)
    state = sharp.init(jnp.arange(3.0))
    for t in range(3):
        extra_args = {"grad_fn": lambda params, i, t=t: grads * t}
        updates, state = sharp.update(grads, state, jnp.arange(3.0), **extra_args)
        assert_close(updates, -0.1 * grads * max(t - 1, 0))


@pytest.mark.parametrize(
    "steps",
    [
        optax.MultiSteps(MODULATED, 2),
        optax.MultiSteps(MODULATED, 2).gradient_transformation(),
    ],
    ids=["MultiSteps", "its transformation"],
)
def test_multi_steps_inside_hands_staleness_on(steps):
    for t, updates in enumerate(updates_of(dj.delayed(steps, 3))):
        if t % 2 == 0:
            assert_close(updates, optax.tree.zeros_like(PARAMS))
            continue
        parts = [gradient(max(step - 3, 0)) for step in (t - 1, t)]
        mean = jax.tree.map(lambda a, b: (a + b) / 2, *parts)
        factor = 1 / max(1, min(t, 3))  # of the gradient that completes the mean
        assert_close(updates, optax.tree.scale(-0.1 * factor, mean))


def test_an_inner_that_takes_no_staleness_need_not_be_told():
    def strict(updates, state, params=None):
        return optax.tree.scale(-1.0, updates), state

    inner = optax.GradientTransformationExtraArgs(optax.identity().init, strict)
    with pytest.raises(TypeError, match="staleness"):
        updates_of(dj.delayed(inner, 1))
    result = updates_of(dj.delayed(inner, 1, hand_staleness=False))
    assert_close(result[5], optax.tree.scale(-1.0, gradient(4)))
