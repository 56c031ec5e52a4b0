"""Training along a trace equals a server that keeps every version."""

import functools
import itertools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax.cluster import Cluster, constant, exponential, pareto, protocols
from experiments import Arm, Experiment, Simulation, along, run, tasks
from experiments.host.folder import RunFolder
from experiments.running import loop
from experiments.running.programs import programs
from experiments.running.trainer import Trainer
from experiments.training.jobs import data_seed
from tests.experiments.training.server import (
    MOMENTUM,
    ages_of,
    assert_cells_are,
    assert_close,
    by_hand,
    server,
)
from tests.support.training_runs import (
    CURVATURES,
    DIGITS,
    NOISY,
    QUIET,
    RATES,
    Trained,
    program_of,
)

pytestmark = pytest.mark.runs


def plain(learning_rate):
    return optax.sgd(learning_rate)


def by_inverse(learning_rate):
    law = dj.scale_by_staleness(dj.modulation.inverse)
    return optax.chain(server(learning_rate), law)


def inverse(tau):
    return 1 / max(1, tau)


def simulated(protocol, workers=4, service=None):
    return Simulation(Cluster(workers, service or exponential(1.0)), protocol)


SOURCES = {
    "hardsync": simulated(protocols.hardsync()),
    "k_async": simulated(protocols.k_async(1)),
    "n_softsync": simulated(protocols.n_softsync(2), 6, pareto(1.0, 1.5)),
    # some updates have no gradient, all a divisor of 2 p P
    "mindflayer": simulated(protocols.mindflayer(2, 0.1)),
    "ringmaster": simulated(protocols.ringmaster(2)),
}


@pytest.mark.parametrize("name", SOURCES)
def test_an_arm_is_trained_as_its_server_would_and_counts_every_age(name):
    run = Trained(along(SOURCES[name], server))
    assert_cells_are(run)
    for s, trace in enumerate(run.traces):
        if name == "mindflayer":
            assert trace.counts.min() == 0 and trace.counts.max() > 1
        counts = np.asarray(run.state.staleness_counts[s])
        np.testing.assert_array_equal(counts, [ages_of(trace, counts.shape[-1])] * 2)
        mean = np.concatenate([chunk.staleness for chunk in run.chunks])[:, s, 0]
        totals = np.bincount(trace.update, trace.update - trace.read_version, 24)
        np.testing.assert_allclose(mean, totals / np.maximum(trace.counts, 1))
    # an update without gradients does not count as divergence
    assert (np.asarray(run.state.diverged_step) == -1).all()
    assert all(np.isfinite(chunk.loss).all() for chunk in run.chunks)


EACH = dj.scale_by_staleness(dj.modulation.inverse)
CAPPED = dj.scale_by_staleness(dj.modulation.capped(3))
SOFT = simulated(protocols.n_softsync(2))
LATE = simulated(protocols.k_async(1), 3, pareto(1.0, 1.1))
CLIENT = dict(client=optax.sgd, client_steps=1)
RULES = {
    "a law on each gradient weights it by its own age": (
        *(SOFT, server, {"each": EACH}),
        {"factor": inverse},
    ),
    "a law behind the optimizer scales the step by the mean age": (
        *(SOFT, by_inverse, {}),
        {"after": inverse},
    ),
    "a law capped by the workers touches the late alone": (
        *(LATE, server, {"each": CAPPED}),
        {"factor": lambda tau: min(1, 3 / max(tau, 1e-9))},
    ),
    "clients that make one step of gradient descent are workers": (
        *(SOURCES["k_async"], optax.sgd(1.0), CLIENT),
        {"momentum": 0.0},
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_of_gradients_and_of_steps(name):
    source, make, options, rule = RULES[name]
    run = Trained(along(source, make, **options))
    assert source != LATE or max(trace.max_staleness for trace in run.traces) > 3
    assert_cells_are(run, **rule)


def test_compensation_of_each_gradient_may_be_a_function_of_axes():
    def each(strength):
        return dj.compensate_delay(strength)

    grid = {"learning_rate": (0.05,), "strength": (0.0, 2.0)}
    run = Trained(along(SOFT, server, each=each), grid=grid)
    for s, (c, strength) in itertools.product(range(2), enumerate(grid["strength"])):
        assert_close(run.params[s, c], by_hand(run, s, 0.05, lam=strength))


def test_a_client_makes_its_steps_on_the_parts_of_its_batch():
    def client(client_rate):
        return optax.sgd(client_rate, MOMENTUM)

    federated = along(
        simulated(protocols.k_async(1)), plain, client=client, client_steps=2
    )
    grid = {"learning_rate": (0.5,), "client_rate": (0.1, 0.3)}
    run = Trained(federated, task=DIGITS, grid=grid, updates=1)

    @jax.jit
    def by_hand(rate, start, batch):
        x, state = start, client(rate).init(start)
        for half in (slice(0, 4), slice(4, 8)):
            part = {name: rows[0][half] for name, rows in batch.items()}
            grads = jax.grad(DIGITS.loss)(x, part)
            updates, state = client(rate).update(grads, state, x)
            x = optax.apply_updates(x, updates)
        return jax.tree.map(lambda a, b: a + 0.5 * (b - a), start, x)

    for (s, seed), (c, rate) in itertools.product(
        enumerate(run.program.seeds), enumerate(grid["client_rate"])
    ):
        start, result = (
            jax.tree.map(lambda x, s=s, c=c: x[s, c], state.model.params)
            for state in (run.begun, run.state)
        )
        expected = by_hand(rate, start, DIGITS.batches(data_seed(seed), 0, 1))
        chex.assert_trees_all_close(result, expected, rtol=1e-4, atol=1e-6)


LOCAL_STEPS = (4, 3, 1)
BY_SPEED = Simulation(
    Cluster(3, [constant(4 * 1.0), constant(3 * 1.3), constant(1 * 3.7)]),
    protocols.k_async(1),
)


def bowl_of_batches():
    """0.5 (x - b) C (x - b) at the mean b of a batch of eight points."""

    def points(seed, start, stop, part=slice(None)):
        rows = [np.random.default_rng([seed, g]).normal(size=(8, 2)) for g in range(99)]
        return np.float32(rows)[start:stop, part]

    def loss(x, batch):
        return 0.5 * jnp.sum(jnp.float32(CURVATURES) * (x - batch.mean(0)) ** 2)

    return tasks.Task(
        init=lambda key: jnp.ones(2),
        loss=loss,
        batches=points,
        evaluate=lambda x: {"train_loss": loss(x, jnp.zeros((1, 2)))},
        examples=8,
    )


def test_each_island_makes_its_number_of_steps_and_counts_their_examples():
    """DyLU by hand: x <- x - eta Delta, of n_w steps on two points each."""
    task, rates = bowl_of_batches(), (0.5, 1.0)
    client = optax.sgd(0.1, MOMENTUM)
    training = along(BY_SPEED, plain, client=client, client_steps=LOCAL_STEPS)
    end = dict(updates=None, examples=100, seeds=(3,))
    run = Trained(training, task=task, grid={"learning_rate": rates}, **end)
    batches, (trace,) = task.batches(data_seed(3), 0, 99), run.traces
    counted = np.append(0, np.cumsum(2 * np.asarray(LOCAL_STEPS)[trace.worker]))
    done = run.job.updates
    assert set(trace.worker[:done]) == {0, 1, 2} and trace.max_staleness > 1
    assert [run.job.examples(t).item() for t in range(done + 1)] == counted.tolist()
    after = BY_SPEED.trace(3, done + 1, math.inf).worker[done]
    assert counted[done] <= 100 < counted[done] + 2 * LOCAL_STEPS[after]
    for cell, rate in enumerate(rates):
        versions = [np.ones(2)]
        for t in range(done):
            start, v = versions[trace.read_version[t]], np.zeros(2)
            x = start
            for part in batches[t].reshape(4, 2, 2)[: LOCAL_STEPS[trace.worker[t]]]:
                v = MOMENTUM * v + CURVATURES * (x - part.mean(axis=0))
                x = x - 0.1 * v
            versions.append(versions[-1] - rate * (start - x))
        assert_close(run.params[0, cell], versions[-1])


def several(sources, make, **changes):
    """A program for each of several clusters, by name."""
    names = {name: i for i, name in enumerate(sources)}
    experiment = Experiment(
        **dict(
            question="?",
            task=NOISY,
            training=along(sources, make),
            grid={"learning_rate": RATES, "cluster": names},
            seeds=(3, 5),
            updates=24,
        )
        | changes
    )
    return dict(zip(sources, programs(experiment), strict=True))


OTHERS = {
    "one": simulated(protocols.k_async(1)),
    "all": simulated(protocols.hardsync()),
    "some": simulated(protocols.k_batch_async(2)),
    "pair": simulated(protocols.hardsync(), 2),  # needs less than "all"
}


@functools.cache
def alone(name):
    training = along(OTHERS[name], by_inverse)
    return Trained(training, updates=None, seconds=9.0, evaluations=20)


@pytest.mark.parametrize("names", [("one", "all", "some"), ("all", "pair")])
def test_clusters_of_one_program_may_have_other_gradients_versions_and_ends(names):
    sources = {name: OTHERS[name] for name in names}
    jobs = several(sources, by_inverse, updates=None, seconds=9.0)
    first = Trainer(jobs[names[0]])
    for name, program in jobs.items():
        run = Trained(of=first.for_program(program))
        assert run.job.ends == alone(name).job.ends
        np.testing.assert_allclose(run.params, alone(name).params, rtol=1e-5, atol=1e-7)
        ages, expected = (
            np.asarray(one.state.staleness_counts) for one in (run, alone(name))
        )
        length = expected.shape[-1]  # the program has room for all of its clusters
        np.testing.assert_array_equal(ages[..., :length], expected)
        assert not ages[..., length:].any()
    assert first.run_chunk._cache_size() == 1


def test_a_function_of_grid_axes_knows_the_number_of_its_cluster():
    sources = {name: simulated(protocols.k_async(1), 1) for name in ("a", "b")}
    jobs = several(sources, lambda learning_rate, cluster: optax.sgd(0.1 * cluster))
    first = Trainer(jobs["a"])
    still, moved = (Trained(of=first.for_program(program)) for program in jobs.values())
    np.testing.assert_array_equal(still.params, still.begun.model.params)
    assert (moved.params != moved.begun.model.params).all()


def test_a_cluster_that_is_not_there_is_refused():
    sources = {"one": simulated(protocols.k_async(1))}
    with pytest.raises(ValueError, match="must be numbers of the 1 sources, 0 to 0"):
        several(sources, plain, grid={"learning_rate": RATES, "cluster": (0, 1)})


def test_ringleader_keeps_the_gradients_of_a_round_in_its_tables():
    ringleader = protocols.ringleader()
    source = simulated(ringleader, service=constant(1.0))
    training = along(source, plain, aggregation=ringleader.aggregation(4))
    run = Trained(training, task=QUIET, updates=4)
    start = np.asarray(run.begun.model.params)
    # all four updates of a round use its one mean, at version 0
    rates = np.asarray(RATES)[:, None]
    expected = start * (1 - 4 * rates * CURVATURES)
    np.testing.assert_allclose(run.params, expected, rtol=1e-5)


@pytest.mark.parametrize("end", [{"seconds": 5.0}, {"examples": 33}])
def test_a_trace_is_followed_up_to_the_end_that_was_asked_for(end):
    spec = Cluster(4, exponential(1.0))
    trace = dj.cluster.simulate(spec, protocols.n_softsync(2), 50, seed=0)
    program = program_of(along(trace, plain), task=DIGITS, updates=None, **end)
    done = program.job.updates
    gradients = np.searchsorted(trace.update, [done, done + 1])
    if "seconds" in end:
        assert trace.seconds[done - 1] <= 5.0 < trace.seconds[done]
    else:
        assert 8 * gradients[0] <= 33 < 8 * gradients[1]
    assert 0 < done < 50


def test_each_gradient_has_a_batch_of_its_own():
    program = program_of(along(simulated(protocols.mindflayer(2, 0.8)), server))
    arrivals, batches = program.job.given(6, 20)
    mask = arrivals.staleness >= 0
    assert not mask.all()
    for s, (seed, trace) in enumerate(
        zip(program.seeds, program.job.traces, strict=True)
    ):
        first, last = (int(np.searchsorted(trace.update, t)) for t in (6, 20))
        drawn = NOISY.batches(data_seed(seed), first, last)
        np.testing.assert_array_equal(batches[:, s][mask[:, s]], drawn)
        assert (batches[:, s][~mask[:, s]] == 0).all()


def test_each_worker_may_have_data_of_its_own():
    task = tasks.digits_mlp(batch_size=8, workers=4, concentration=0.1)
    training = along(simulated(protocols.k_async(1)), plain)
    rule = program_of(training, task=task, seeds=(3,), updates=80).job
    (trace,) = rule.traces
    whole = rule.given(0, 80)
    labels = [set() for _ in range(4)]
    for g, worker in enumerate(trace.worker):
        labels[worker] |= set(whole[1]["label"][g, 0, 0].tolist())
    assert min(map(len, labels)) < 10  # few classes
    later = jax.tree.map(lambda leaf: leaf[30:], whole)
    chex.assert_trees_all_equal(later, rule.given(30, 80))


def test_reads_are_spread_by_draws_of_the_seed():
    # the same trace under every seed
    source = simulated(protocols.k_async(1), service=constant(1.0))

    def params(spread):
        training = along(source, server, read_spread=spread)
        return np.abs(Trained(training, task=QUIET).params)

    one, other = params(0.0)  # replicates differ only by the signs of their corners
    np.testing.assert_array_equal(one, other)
    one, other = params(1.0)
    assert (one != other).any()


def results_of(training, folder, **changes):
    """The results table of a whole run."""
    given = dict(grid={"learning_rate": RATES}, seeds=2, updates=24, task=QUIET)
    experiment = Experiment(question="?", training=training, **given | changes)
    return run(experiment, str(folder)).results


def test_a_filter_that_waits_for_a_dead_worker_says_so_in_tables_and_metrics(tmp_path):
    """With one attacker of three, no worker counts twice in three; one is dead."""
    cluster = Cluster(3, constant(1.0), slowdown=(1.0, 1.0, 1e6))

    def filtered(learning_rate):
        inner = plain(learning_rate)
        return dj.kardam(inner, workers=3, attackers=1, lipschitz=False)

    training = along(Simulation(cluster, protocols.k_async(1)), filtered)
    result = results_of(training, tmp_path, evaluate_every=12)
    assert (result["dropped_in_row"] == 22).all()
    assert result["dropped"].to_numpy() == pytest.approx(22 / 24)
    rows = RunFolder(tmp_path).rows()[1:]
    assert [row["dropped_in_row"] for row in rows] == [10, 22]
    assert [row["dropped"] for row in rows] == pytest.approx([10 / 12, 22 / 24])


@pytest.mark.parametrize("place", ["mean", "each"])
def test_refused_gradients_are_counted_and_not_the_means_of_them(place, tmp_path):
    """With three gradients an update: every other mean is refused, or each gradient."""

    def every_other(gradients, seen, params, **extra_args):
        return seen % 2 == 0, gradients, seen + 1

    def refusing(tx):
        return dj.refusing(tx, every_other, begin=lambda params: jnp.int32(0))

    source = simulated(protocols.hardsync(), workers=3)
    if place == "mean":
        training = along(source, lambda learning_rate: refusing(plain(learning_rate)))
    else:
        training = along(source, plain, each=refusing(optax.identity()))
    result = results_of(training, tmp_path)
    assert result["dropped"].to_numpy() == pytest.approx(0.5)
    assert (result["dropped_in_row"] <= 1).all()


def test_a_single_cell_along_a_trace_that_diverges_stops_with_the_update_named():
    training = along(simulated(protocols.k_async(1)), server)
    with pytest.raises(loop.DivergenceError, match="not finite at update"):
        Trained(training, seeds=(3,), grid={"learning_rate": (1e30,)})


def test_a_diverged_cell_along_a_trace_is_frozen_and_its_neighbors_go_on():
    training = along(simulated(protocols.k_async(1)), server)
    run = Trained(training, grid={"learning_rate": (0.1, 1e30)})
    fine, bad = np.asarray(run.state.diverged_step[0])
    assert fine == -1 and 0 < bad < 24
    loss = np.concatenate([chunk.loss for chunk in run.chunks])[:, 0]
    assert np.isfinite(loss[:, 0]).all() and np.isnan(loss[bad:, 1]).all()
    for s in range(2):
        assert_close(run.params[s, 0], by_hand(run, s, 0.1))


def test_an_arm_may_end_on_its_own():
    source = simulated(protocols.hardsync(), service=constant(1.0))
    arms = [
        Arm(training=along(source, plain), labels={"a": k}, seconds=s)
        for k, s in enumerate((5.0, 9.0, None))
    ]
    results = programs(
        Experiment(
            question="?",
            task=NOISY,
            arms=arms,
            seconds=12.0,
            grid={"learning_rate": (0.1,)},
            evaluations=2,
        )
    )
    assert [program.job.updates for program in results] == [5, 9, 12]
    assert [program.job.evaluate_every for program in results] == [2, 4, 6]


def test_a_simulation_may_end_where_every_worker_hangs():
    cluster = dj.cluster.Cluster(2, dj.cluster.infinite_bernoulli(1.0, 0.2))
    protocol = dj.cluster.protocols.k_async(1)
    with pytest.raises(ValueError):
        Simulation(cluster, protocol).trace(0, 1000, math.inf)
    result = Simulation(cluster, protocol, may_hang=True).trace(0, 1000, math.inf)
    assert 0 < result.num_updates < 1000
    with pytest.raises(ValueError):  # one update more is an error
        Simulation(cluster, protocol).trace(0, result.num_updates + 1, math.inf)


def test_an_error_of_a_protocol_is_no_end(monkeypatch):
    """Not all workers hang: the server refuses everything that arrives."""
    monkeypatch.setattr("delayjax._src.cluster.server._PATIENCE", 1000)

    def refuses(server):
        server.start_all()
        for arrival in server:
            server.drop(arrival)
            server.start(arrival.worker)

    cluster = dj.cluster.Cluster(2, dj.cluster.constant(1.0))
    with pytest.raises(ValueError, match="`refuses` makes no progress"):
        Simulation(cluster, refuses, may_hang=True).trace(0, 10, math.inf)


@pytest.mark.parametrize(
    ("chance", "seconds", "message"),
    [
        (0.99, 200.0, "Under seed 3 all workers hang before the first update"),
        (
            0.0,
            0.5,
            "`seconds` must be at least 1.0, .* under seed 3, got 0.5: raise it",
        ),
    ],
)
def test_workers_that_all_hang_are_blamed_and_not_the_seconds(chance, seconds, message):
    cluster = dj.cluster.Cluster(1, dj.cluster.infinite_bernoulli(1.0, chance))
    source = Simulation(cluster, dj.cluster.protocols.k_async(1), may_hang=True)
    with pytest.raises(ValueError, match=message):
        program_of(along(source, server), updates=None, seconds=seconds)
