"""Arguments of which each could be right: what is wrong alone, `fuzz_test` draws."""

import jax
import jax.numpy as jnp
import optax
import pytest

import delayjax as dj
from delayjax import averaging
from tests.averaging.driving import SGD, wild

KEY = jax.random.key(0)


def stepped(tx, workers=4, dtype="float32"):
    def step(x):
        return tx.update(x.astype(dtype), tx.init(x), x)

    return jax.eval_shape(jax.vmap(step, axis_name="workers"), jnp.ones(workers))


def without_parameters(tx):
    return jax.vmap(lambda x: tx.update(x, tx.init(x)), axis_name="workers")(
        jnp.ones(4)
    )


EASGD = averaging.easgd(SGD)
ALONE = averaging.outer(SGD, SGD, period=1, axis_name=None)
REFUSED = [
    (lambda: without_parameters(EASGD), "needs the extra argument `params`"),
    (lambda: stepped(EASGD, 4, "int32"), "must be floating-point gradients, got int32"),
    (
        lambda: averaging.easgd(SGD, period=jnp.int32(0)),
        "`period` must be at least 1, got 0",
    ),
    (
        lambda: averaging.easgd(SGD, period=jnp.float32(2)),
        "`period` must be a static integer",
    ),
    (
        lambda: averaging.easgd(SGD, lock_free=wild()),
        "`order` must be given with `lock_free`, got None",
    ),
    (
        lambda: stepped(averaging.easgd(SGD, order=averaging.first_come([[1.0, 2.0]]))),
        "`seconds` must have a column for each of 4 workers, got 2",
    ),
    (
        lambda: averaging.delayed_average(SGD, 3, period=2),
        "`delay` must be at most 2, got 3: use dga",
    ),
    (
        lambda: ALONE.update(jnp.int32(1), ALONE.init(1.0), 1.0),
        "`updates` must be floating-point gradients, got int32",
    ),
    (lambda: stepped(averaging.sgp(SGD), 1), "`averaging.sgp` needs two workers"),
    (
        lambda: stepped(averaging.gossip(SGD, key=KEY), 1),
        "`averaging.gossip` needs two workers",
    ),
    (
        lambda: stepped(averaging.ad_psgd(SGD, key=KEY), 3),
        "`averaging.ad_psgd` needs an even number of workers, got 3",
    ),
    (
        lambda: stepped(averaging.sgp(SGD, peers=3)),
        "`peers` must be at most 2, the hops of 4 workers, got 3",
    ),
    (lambda: stepped(averaging.wagma(SGD), 6), "must be a power of two, got 6"),
    (
        lambda: stepped(averaging.wagma(SGD, group_size=8)),
        "`group_size` must be at most 4, got 8",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_does_not_fit_together_is_refused(call, message):
    with pytest.raises((ValueError, TypeError, NameError), match=message):
        call()


def test_parameters_that_are_not_said_to_be_own_are_refused():
    """Their gradient is summed over the workers, or they would drift apart."""

    def step(state, batch):
        x, opt_state = state
        grad = jax.grad(lambda x: jnp.sum((x - batch) ** 2))(x)
        updates, opt_state = EASGD.update(grad, opt_state, x)
        return (optax.apply_updates(x, updates), opt_state), {}

    x = jnp.zeros(2)
    held = dj.workers.simulate(step, 4)
    with pytest.raises(
        ValueError, match=r"same on all workers|drift apart|sums a grad"
    ):
        held.init((x, EASGD.init(x)), jnp.ones((4, 2)))
