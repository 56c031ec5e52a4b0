import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import averaging, cluster
from tests.exchange.driving import (
    WORKERS,
    as_workers,
    executions,
)

VISITS = 60
SLOWDOWNS = {"exponential": [1.0, 1.0, 1.0, 1.0], "a slow one": [1.0, 4.0, 1.0, 1.0]}


def cluster_of(slowdown):
    service = dj.cluster.exponential(1.0)
    return dj.cluster.Cluster(WORKERS, service, slowdown=SLOWDOWNS[slowdown])


def traced(slowdown, *, visits=VISITS, seed=1):
    rule = dj.cluster.protocols.k_async(1)
    return dj.cluster.simulate(cluster_of(slowdown), rule, visits, seed=seed)


INNERS = {
    "adam": optax.adam(0.1),
    "a schedule": optax.sgd(optax.linear_schedule(0.1, 0.0, 20), momentum=0.9),
}


def away(order, gradients, execution, inner):
    """Updates [T, P, n] of `only_on_visit`, and the counters of its state."""

    def step(state, gradient):
        updates, state = averaging.only_on_visit(inner, order).update(
            gradient, state, params
        )
        return state, updates

    params = jnp.ones(3)
    held = as_workers(execution, step)
    state = averaging.only_on_visit(inner, order).init(params)
    split = held.init(state, gradients[0], shared=False)
    return jax.jit(lambda s, g: jax.lax.scan(held.step, s, g))(split, gradients)


@executions
@pytest.mark.parametrize("name", INNERS)
def test_a_worker_s_optimizer_sees_the_gradients_of_its_own_visits_alone(
    execution, name
):
    inner = INNERS[name]
    trace = traced("a slow one")
    visits = cluster.visits_to_rounds(trace.worker, WORKERS)
    shape = (len(visits), WORKERS, 3)
    gradients = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    order = averaging.first_come(visits)
    split, updates = away(order, jnp.asarray(gradients), execution, inner)
    assert split.state.step == len(visits)
    for p in range(WORKERS):
        state, expected = inner.init(jnp.ones(3)), np.zeros((len(visits), 3))
        for r in np.flatnonzero(np.isfinite(visits[:, p])):
            update, state = inner.update(gradients[r, p], state, jnp.ones(3))
            expected[r] = update
        np.testing.assert_allclose(updates[:, p], expected, rtol=1e-6, atol=1e-7)
        for own, alone in zip(
            jax.tree.leaves(split.state.inner_state),
            jax.tree.leaves(state),
            strict=True,
        ):
            np.testing.assert_allclose(own[p], alone, rtol=1e-6, atol=1e-7)


def test_optax_s_mask_rests_in_the_same_rounds():
    order = averaging.first_come([[0.0, np.inf], [np.inf, 0.0], [1.0, 0.0]])
    ours = averaging.only_on_visit(optax.adam(0.1), order)
    theirs = optax.transforms.conditionally_mask(
        optax.adam(0.1), lambda step: order(step) >= 0
    )

    def updates(tx, gradients):
        return jax.lax.scan(
            lambda state, g: tx.update(g, state)[::-1],
            tx.init(gradients[0]),
            gradients,
        )[1]

    gradients = jnp.asarray(np.random.default_rng(1).normal(size=(2, 9)), jnp.float32)
    for one, other in zip(
        *(
            jax.vmap(lambda g, tx=tx: updates(tx, g), axis_name="workers")(gradients)
            for tx in (ours, theirs)
        ),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: averaging.only_on_visit(None, averaging.by_rank()),
            TypeError,
            "`inner` must be an Optax transformation",
        ),
        (
            lambda: averaging.only_on_visit(optax.sgd(0.1), lambda step: 0.5).update(
                1.0, averaging.only_on_visit(optax.sgd(0.1), lambda step: 0.5).init(1.0)
            ),
            TypeError,
            r"`order\(step\)` must be an integer",
        ),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
