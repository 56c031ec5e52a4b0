"""Kardam, compared with a server after the pseudocode of the paper, in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.rules.liars import (
    FILTERS,
    STEPS,
    TREE,
    Run,
    quadratic,
    scaled,
    served,
    train,
    trained,
)
from tests.support.cases import shortened
from tests.support.compiled import bytes_accessed, lowered, temporary
from tests.support.refusing_server import Kardam


@pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))
@pytest.mark.parametrize(
    ("workers", "attackers", "window", "patience", "every"),
    [(4, 1, 26, None, 1), (7, 2, 3, 2, 1), (5, 0, 1, None, 1), (5, 1, 2, None, 3)],
)
def test_kardam_is_the_papers_server(seed, workers, attackers, window, patience, every):
    run = Run(seed, workers, liars=attackers)
    optimizer = optax.sgd(0.1, momentum=0.5)
    tx = dj.kardam(
        optax.MultiSteps(optimizer, every) if every > 1 else optimizer,
        workers=workers,
        attackers=attackers,
        window=window,
        patience=patience,
    )
    ours, accepted, state = train(run, tx)
    server = Kardam(workers, attackers, window, patience)
    theirs, accepted_by_theirs = served(run, server, every)
    assert accepted == accepted_by_theirs
    assert 0.1 * STEPS < sum(accepted) < 0.9 * STEPS  # it accepts some and refuses some
    # rounding of float32 over a hundred steps; refused gradients have a norm of 30
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-5)
    in_row = accepted[::-1].index(True)
    assert (state.dropped, state.dropped_in_row) == (accepted.count(False), in_row)
    assert state.memory.accepted == accepted.count(True)


def counted(tx, workers):
    """How many gradients are accepted; the gradients of these workers are ones."""

    def step(state, worker):
        updates, state = tx.update(jnp.ones(()), state, worker=worker)
        return state, updates != 0

    state = tx.init(jnp.ones(()))
    state, moved = jax.jit(lambda: jax.lax.scan(step, state, jnp.asarray(workers)))()
    assert state.memory.accepted == moved.sum()
    return int(state.memory.accepted)


@pytest.mark.parametrize(("workers", "attackers"), [(10, 1), (10, 3), (3, 1), (7, 3)])
def test_the_frequency_filter_accepts_the_share_of_workers_that_are_not_recent(
    workers, attackers
):
    tx = dj.kardam(
        optax.sgd(1.0), workers=workers, attackers=attackers, lipschitz=False
    )
    in_turn = np.arange(2000) % workers
    assert counted(tx, in_turn) == 2000
    share = (workers - 2 * attackers) / workers
    at_random = np.random.default_rng(1).integers(0, workers, 20_000)
    # the draws from one accepted gradient to the next have a geometric distribution
    deviation = share * np.sqrt((1 - share) / 20_000)
    assert abs(counted(tx, at_random) / 20_000 - share) < 5 * deviation


def test_of_all_gradients_accepted_in_a_row_the_majority_is_honest():
    """For any rate at which the two attackers send."""
    tx = dj.kardam(optax.sgd(1.0), workers=5, attackers=2, lipschitz=False)
    rng = np.random.default_rng(2)
    workers = rng.choice(5, 3000, p=[0.45, 0.45, 0.04, 0.03, 0.03])

    def step(state, worker):
        _, new = tx.update(jnp.ones(()), state, worker=worker)
        return new, new.applied

    _, accepted = jax.lax.scan(step, tx.init(jnp.ones(())), jnp.asarray(workers))
    accepted = workers[np.asarray(accepted)]
    assert len(accepted) > 100
    honest = np.convolve(accepted >= 2, np.ones(5), "valid")
    assert honest.min() >= 3


def test_nearly_all_of_ten_honest_workers_gradients_are_accepted():
    updates = 2000
    tx = dj.kardam(optax.sgd(0.05), workers=10, attackers=1)
    losses, state = trained(tx, updates)
    # each filter alone accepts (P - f)/P: 0.9, and 1 if workers send in turn
    assert 0.8 * updates < state.memory.accepted < updates
    assert losses[-500:].mean() < 0.02 * losses[0]


def test_an_attack_blows_up_the_plain_optimizer_and_not_kardam():
    updates, liars = 1000, [2, 5, 8]
    losses, _ = trained(optax.sgd(0.05), updates, attackers=liars)
    assert not losses[-1] < 1e6 * losses[0]
    tx = dj.kardam(optax.sgd(0.05), workers=10, attackers=3)
    losses, state = trained(tx, updates, attackers=liars)
    # it accepts a lie without coefficients, and after P refusals in a row
    assert losses.max() < 100 * losses[0] and losses[-1] < 0.1 * losses[0]
    assert state.dropped_in_row <= 10
    assert 0.2 * updates < state.memory.accepted < 0.7 * updates


@pytest.mark.long
@pytest.mark.parametrize(("seed", "learning_rate"), [(0, 0.03), (3, 0.1)])
def test_lies_that_come_in_by_patience_need_the_frequency_filter(seed, learning_rate):
    """In two runs of ten, as the docstring says; the nearest rank refuses many."""
    times = dj.cluster.gamma(1.0, shape=0.05**-2)
    ten = dj.cluster.Cluster(10, times)
    trace = dj.cluster.simulate(ten, dj.cluster.protocols.k_async(1), 3000, seed=seed)
    lies = dj.attack(optax.scale(-1.0), attackers=[2, 5, 8])

    def final_loss(**options):
        sgd = optax.sgd(learning_rate)
        tx = dj.kardam(sgd, workers=10, attackers=3, **options)
        training = dj.replay(trace, quadratic, tx, each=lies)
        state = training.init(jnp.full(10, 3.0), jax.random.key(seed))
        _, report = training.run(state, jnp.zeros((3000, 1)))
        return float(report.metrics[-200:].mean())

    assert final_loss(frequency=False) > 1e3
    assert final_loss(frequency=False, patience=10**6) < 1
    assert final_loss() < 1


def test_a_coefficient_of_zero_is_known():
    """If gradients do not change, it is 0; with three of four, the quantile is 0."""
    tx = dj.kardam(
        optax.sgd(1.0), workers=4, attackers=1, frequency=False, patience=100
    )
    x, state, update = jnp.zeros(()), tx.init(jnp.zeros(())), jax.jit(tx.update)
    sent = [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0)] * 2 + [(3, 11.0), (0, 2.0)]
    applied = []
    for worker, g in sent:
        g = jnp.asarray(g)
        updates, state = update(g, state, x, worker=worker, stale_params=x)
        x = optax.apply_updates(x, updates)
        applied.append(bool(state.applied))
    largest = state.memory.lipschitz.coefficients.reshape(4, -1).max(axis=1)
    np.testing.assert_allclose(largest, [0.25, 0.0, 0.0, 10.0])
    # |2 - 1| / |x - X| = 1 is more than the third smallest of 0, 0, 1/4, 10
    assert applied == [True] * 8 + [False, False]


@pytest.mark.parametrize("patience", [1, 3, 8])
def test_after_patience_refusals_one_gradient_is_accepted(patience):
    """Gradients that grow tenfold are refused, but not for ever."""
    tx = dj.kardam(
        optax.sgd(1e-3), workers=4, attackers=1, frequency=False, patience=patience
    )
    x, state, update = jnp.ones(2), tx.init(jnp.ones(2)), jax.jit(tx.update)
    accepted = []
    for t in range(40):
        g = x * jnp.float32(2.0) ** t
        updates, new = update(g, state, x, worker=t % 4, stale_params=x)
        accepted.append(bool(new.applied))
        assert new.dropped_in_row == (0 if accepted[-1] else state.dropped_in_row + 1)
        x, state = optax.apply_updates(x, updates), new
    places = np.flatnonzero(accepted)
    places = places[places >= 10]  # all workers have coefficients from here on
    assert (np.diff(places) == patience + 1).all() and len(places) >= 3


def test_a_filter_that_waits_for_a_dead_worker_says_so():
    tx = dj.kardam(optax.sgd(1.0), workers=3, attackers=1, lipschitz=False)
    state = tx.init(jnp.ones(()))
    update = jax.jit(tx.update)
    for t in range(20):  # worker 2 is dead
        _, state = update(jnp.ones(()), state, worker=t % 2)
    assert (state.memory.accepted, state.dropped, state.dropped_in_row) == (2, 18, 18)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("bad", shortened([np.nan, np.inf, 1e30], np.nan, 1e30))
def test_a_refused_gradient_leaves_every_bit_of_the_inner_state(name, bad):
    tx = FILTERS[name]
    state, update = tx.init(TREE), jax.jit(tx.update)
    for worker in range(3):
        extra_args = {"worker": worker, "stale_params": scaled(worker)}
        _, state = update(scaled(1.0), state, scaled(worker), **extra_args)
    before = state
    for worker in (0, 1, 2, 0, 1, 2):
        extra_args = {"worker": worker, "stale_params": TREE}
        updates, state = update(scaled(bad), state, TREE, **extra_args)
        assert all(not leaf.any() for leaf in jax.tree.leaves(updates))
    jax.tree.map(np.testing.assert_array_equal, state.inner_state, before.inner_state)
    assert state.dropped == before.dropped + 6
    assert state.dropped_in_row == before.dropped_in_row + 6
    assert all(np.isfinite(x.astype(float)).all() for x in jax.tree.leaves(state))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_frequency_filter_alone_refuses_what_is_not_finite(bad):
    tx = dj.kardam(optax.sgd(1.0), workers=3, attackers=1, lipschitz=False)
    state, update = tx.init(TREE), jax.jit(tx.update)
    updates, state = update(scaled(bad), state, TREE, worker=0)
    assert all(not leaf.any() for leaf in jax.tree.leaves(updates))
    assert (state.dropped, state.memory.accepted) == (1, 0)
    _, state = update(scaled(1.0), state, TREE, worker=0)  # it has sent nothing yet
    assert state.memory.accepted == 1


@pytest.mark.parametrize("lipschitz", [True, False])
def test_a_worker_that_is_not_of_the_cluster_is_refused(lipschitz):
    tx = dj.kardam(optax.sgd(0.1), workers=3, attackers=1, lipschitz=lipschitz)
    state = tx.init(TREE)
    update = jax.jit(tx.update)  # the workers are not known when it is traced
    for stranger in (3, -1):
        _, after = update(TREE, state, TREE, worker=stranger, stale_params=TREE)
        assert (after.memory.accepted, after.applied) == (0, False)
        assert (after.dropped, after.dropped_in_row) == (1, 1)
        counts = {"dropped": after.dropped, "dropped_in_row": after.dropped_in_row}
        wanted = state._replace(applied=after.applied, **counts)
        if lipschitz:
            seen = after.memory.lipschitz.last_params
            wanted = optax.tree.set(wanted, last_params=seen)
        jax.tree.map(np.testing.assert_array_equal, after, wanted)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_step_writes_one_gradient_whatever_the_number_of_workers(dtype):
    params = {"w": jnp.ones(5000, dtype), "b": jnp.ones(3, dtype)}

    def bytes_of(workers):
        tx = dj.kardam(optax.sgd(0.1), workers=workers, attackers=1)
        given = {"worker": jnp.int32(0), "stale_params": params}
        program = lowered(tx, params, **given).compile()
        return bytes_accessed(program), temporary(program)

    few, many = np.array(bytes_of(4)), np.array(bytes_of(40))
    # a gradient of each worker would be 36 more; each has 26 numbers for coefficients
    assert (many - few < 2 * params["w"].nbytes + 36 * 26 * 4 * 10).all()


@pytest.mark.parametrize("off", [{"frequency": False}, {"attackers": 0}])
def test_no_leaf_of_a_state_is_empty(off):
    """Orbax saves no empty leaf."""
    tx = dj.kardam(optax.sgd(0.1), **{"workers": 3, "attackers": 1} | off)
    assert all(leaf.size for leaf in jax.tree.leaves(tx.init(TREE)))
