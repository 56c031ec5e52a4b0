"""Training along a trace is a server that keeps every version, gradient by gradient."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax.cluster import Cluster, constant, exponential, pareto, protocols
from experiments import Arm, Experiment, Simulation, along, run, tasks
from experiments.results import metrics
from experiments.running import loop
from experiments.running.programs import programs
from experiments.training.rules import data_seed
from tests.support.training_runs import (
    CURVATURES,
    DIGITS,
    NOISE,
    NOISY,
    QUIET,
    RATES,
    Trained,
)

MOMENTUM = 0.9


def server(learning_rate):
    return optax.sgd(learning_rate, MOMENTUM)


def plain(learning_rate):
    return optax.sgd(learning_rate)


def simulated(protocol, workers=4, service=None):
    return Simulation(Cluster(workers, service or exponential(1.0)), protocol)


def by_hand(run, s, rate, factor=None, after=None, compensate=0.0):
    """One cell in float64. `factor` weights a gradient, `after` the step."""
    trace, seed = run.traces[s], run.program.seeds[s]
    noise = NOISY.batches(data_seed(seed), 0, len(trace.worker))
    x = np.asarray(run.begun.model.params[s, 0], np.float64)
    velocity, versions = np.zeros_like(x), [x]
    for t in range(run.rule.updates):
        total, taus = 0.0, []
        for g in np.flatnonzero(trace.update == t):
            then = versions[trace.read_version[g]]
            own = CURVATURES * then + NOISE * noise[g]
            own = own + compensate * own**2 * (x - then)
            taus.append(t - int(trace.read_version[g]))
            total = total + own * (1.0 if factor is None else factor(taus[-1]))
        velocity = MOMENTUM * velocity + total / trace.divisor[t]
        scale = 1.0 if after is None else after(np.mean(taus))
        x = x - rate * scale * velocity
        versions.append(x)
    return x


def assert_cells_are(run, **rule):
    for s, c in np.ndindex(2, 2):
        expected = by_hand(run, s, RATES[c], **rule)
        # float32 against float64
        np.testing.assert_allclose(run.params[s, c], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "source",
    [
        simulated(protocols.hardsync()),
        simulated(protocols.k_async(1)),
        simulated(protocols.n_softsync(2), 6, pareto(1.0, 1.5)),
        simulated(protocols.k_batch_async(3)),
        # some updates have no gradient, all a divisor of 2 p P
        simulated(protocols.mindflayer(2, 0.8)),
        simulated(protocols.ringmaster(2)),
    ],
)
def test_an_arm_is_trained_as_its_server_would(source):
    assert_cells_are(Trained(along(source, server)))


def test_a_law_on_each_gradient_weights_it_by_its_own_age():
    law = dj.scale_by_staleness(dj.modulation.inverse)
    run = Trained(along(simulated(protocols.n_softsync(2)), server, each=law))
    assert_cells_are(run, factor=lambda tau: 1 / max(1, tau))


def test_a_law_behind_the_optimizer_scales_the_step_by_the_mean_age():
    law = dj.scale_by_staleness(dj.modulation.inverse)

    def make(learning_rate):
        return optax.chain(server(learning_rate), law)

    run = Trained(along(simulated(protocols.n_softsync(2)), make))
    assert_cells_are(run, after=lambda mean: 1 / max(1, mean))


def test_a_law_capped_by_the_workers_touches_the_late_alone():
    law = dj.scale_by_staleness(dj.modulation.capped(3))
    source = simulated(protocols.k_async(1), 3, pareto(1.0, 1.1))
    run = Trained(along(source, server, each=law))
    assert max(trace.max_staleness for trace in run.traces) > 3
    assert_cells_are(run, factor=lambda tau: min(1, 3 / max(tau, 1e-9)))


def test_compensation_acts_on_each_gradient_before_the_mean():
    each = dj.compensate_delay(2.0)
    run = Trained(along(simulated(protocols.n_softsync(2)), server, each=each))
    assert_cells_are(run, compensate=2.0)


def test_each_may_be_a_function_of_axes():
    def each(strength):
        return dj.compensate_delay(strength)

    source = simulated(protocols.n_softsync(2))
    grid = {"learning_rate": (0.05,), "strength": (0.0, 2.0)}
    run = Trained(along(source, server, each=each), grid=grid)
    for s in range(2):
        for c, strength in enumerate((0.0, 2.0)):
            expected = by_hand(run, s, 0.05, compensate=strength)
            np.testing.assert_allclose(run.params[s, c], expected, rtol=1e-4, atol=1e-5)


def test_clients_that_make_one_step_of_gradient_descent_are_workers():
    source = simulated(protocols.k_async(1))
    federated = along(source, optax.sgd(1.0), client=optax.sgd, client_steps=1)
    ours, theirs = (Trained(t).params for t in (federated, along(source, plain)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_client_makes_its_steps_on_the_parts_of_its_batch():
    def client(client_rate):
        return optax.sgd(client_rate, MOMENTUM)

    federated = along(
        simulated(protocols.k_async(1)), plain, client=client, client_steps=2
    )
    grid = {"learning_rate": (0.5,), "client_rate": (0.1, 0.3)}
    run = Trained(federated, task=DIGITS, grid=grid, updates=1)
    for (s, seed), (c, rate) in itertools.product(
        enumerate(run.program.seeds), enumerate(grid["client_rate"])
    ):
        batch = DIGITS.batches(data_seed(seed), 0, 1)
        start = jax.tree.map(lambda x, s=s, c=c: x[s, c], run.begun.model.params)
        x, state = start, client(rate).init(start)
        for half in (slice(0, 4), slice(4, 8)):
            part = {name: rows[0][half] for name, rows in batch.items()}
            grads = jax.grad(lambda x, part=part: DIGITS.loss(x, part))(x)
            updates, state = client(rate).update(grads, state, x)
            x = optax.apply_updates(x, updates)
        expected = jax.tree.map(lambda a, b: a + 0.5 * (b - a), start, x)
        found = jax.tree.map(lambda x, s=s, c=c: x[s, c], run.state.model.params)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
            *(found, expected),
        )


def test_asgd_at_constant_speed_is_a_constant_delay():
    def delayed(learning_rate):
        return dj.delayed(server(learning_rate), 4)

    source = simulated(protocols.k_async(1), 5, constant(1.0))
    # without noise a gradient is that of its version, whenever it is taken; while none
    # is old enough both use that of version 0
    arm, serial = (
        Trained(training, task=QUIET, updates=30).params
        for training in (along(source, server), delayed)
    )
    np.testing.assert_allclose(arm, serial, rtol=1e-5)


def test_several_clusters_in_one_program_are_each_of_them_alone():
    law = dj.scale_by_staleness(dj.modulation.inverse)

    def make(learning_rate):
        return optax.chain(server(learning_rate), law)

    sources = {
        "slow": simulated(protocols.k_async(1), 6),
        "fast": simulated(protocols.k_async(1), 2),
    }
    grid = {"cluster": {name: i for i, name in enumerate(sources)}}
    both = Trained(along(sources, make), grid={"learning_rate": RATES} | grid)
    cells = both.program.settings()
    for name, source in sources.items():
        alone = Trained(along(source, make))
        own = [c for c, cell in enumerate(cells) if cell["cluster"] == name]
        np.testing.assert_allclose(both.params[:, own], alone.params, rtol=1e-6)
        counted = np.asarray(both.state.staleness_counts)[:, own]
        depth = alone.state.staleness_counts.shape[-1]
        np.testing.assert_array_equal(
            counted[..., :depth], alone.state.staleness_counts
        )
        assert counted[..., depth:].sum() == 0


@pytest.mark.parametrize(
    ("protocol", "end", "message"),
    [
        (protocols.hardsync(), {}, "'two' has not one gradient for each of 24"),
        (protocols.k_async(1), {"updates": None, "seconds": 9.0}, "end the run with"),
    ],
)
def test_several_clusters_need_one_gradient_an_update(protocol, end, message):
    sources = {
        "one": simulated(protocols.k_async(1)),
        "two": simulated(protocol),
    }
    with pytest.raises(ValueError, match=message):
        grid = {"learning_rate": RATES, "cluster": {"one": 0, "two": 1}}
        Trained(along(sources, plain), grid=grid, **end)


def test_hardsync_is_serial_training_on_the_union_of_the_batches():
    source = simulated(protocols.hardsync())
    arm, serial = (
        Trained(training, task=tasks.breast_cancer(batch_size=size), updates=12).state
        for training, size in ((along(source, server), 5), (server, 20))
    )
    # a mean of four means and one of all differ by rounding
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
        arm.model.params,
        serial.model.params,
    )


def test_ringleader_keeps_the_gradients_of_a_round_in_its_tables():
    ringleader = protocols.ringleader()
    source = simulated(ringleader, service=constant(1.0))
    training = along(source, plain, aggregation=ringleader.aggregation(4))
    run = Trained(training, task=QUIET, updates=4)
    start = np.asarray(run.begun.model.params)
    # all four updates of a round move along its one mean, that of version 0
    rates = np.asarray(RATES)[:, None]
    expected = start * (1 - 4 * rates * CURVATURES)
    np.testing.assert_allclose(run.params, expected, rtol=1e-5)


@pytest.mark.parametrize("end", [{"seconds": 5.0}, {"examples": 33}])
def test_a_trace_is_followed_up_to_the_end_that_was_asked_for(end):
    spec = Cluster(4, exponential(1.0))
    trace = dj.cluster.simulate(spec, protocols.n_softsync(2), 50, seed=0)
    run = Trained(along(trace, plain), task=DIGITS, updates=None, **end)
    done = run.rule.updates
    gradients = np.searchsorted(trace.update, [done, done + 1])
    if "seconds" in end:
        assert trace.seconds[done - 1] <= 5.0 < trace.seconds[done]
    else:
        assert 8 * gradients[0] <= 33 < 8 * gradients[1]
    assert 0 < done < 50


def test_each_gradient_has_a_batch_of_its_own():
    run = Trained(along(simulated(protocols.mindflayer(2, 0.8)), server))
    arrivals, batches = run.program.rule.given(6, 20)
    there = arrivals.staleness >= 0
    assert not there.all()
    for s, seed in enumerate(run.program.seeds):
        trace = run.traces[s]
        first, last = (int(np.searchsorted(trace.update, t)) for t in (6, 20))
        drawn = NOISY.batches(data_seed(seed), first, last)
        np.testing.assert_array_equal(batches[:, s][there[:, s]], drawn)
        assert (batches[:, s][~there[:, s]] == 0).all()


def test_each_worker_may_have_data_of_its_own():
    task = tasks.digits_mlp(batch_size=8, workers=4, concentration=0.1)
    source = simulated(protocols.k_async(1))
    changes = dict(task=task, seeds=(3,), grid={"learning_rate": (0.1,)}, updates=80)
    (program,) = programs(
        Experiment(question="?", training=along(source, plain), **changes)
    )
    (trace,) = program.rule.traces
    _, batches = program.rule.given(0, 80)
    labels = [set() for _ in range(4)]
    for g, worker in enumerate(trace.worker):
        labels[worker] |= set(batches["label"][g, 0, 0].tolist())
    assert min(map(len, labels)) < 10  # few classes
    later = jax.tree.map(lambda leaf: leaf[30:], program.rule.given(0, 80))
    jax.tree.map(np.testing.assert_array_equal, later, program.rule.given(30, 80))


@pytest.mark.parametrize(
    "source",
    [simulated(protocols.n_softsync(2), 6), simulated(protocols.mindflayer(2, 0.8))],
)
def test_staleness_is_counted_for_every_gradient(source):
    run = Trained(along(source, server))
    for s, trace in enumerate(run.traces):
        ages = trace.update - trace.read_version
        counts = np.bincount(ages, minlength=run.state.staleness_counts.shape[-1])
        for c in range(len(RATES)):
            np.testing.assert_array_equal(run.state.staleness_counts[s, c], counts)
        mean = np.concatenate([chunk.staleness for chunk in run.chunks])[:, s, 0]
        totals = np.bincount(trace.update, ages, minlength=24)
        np.testing.assert_allclose(mean, totals / np.maximum(trace.counts, 1))


def test_reads_are_spread_by_draws_of_the_seed():
    # the same trace under every seed
    source = simulated(protocols.k_async(1), service=constant(1.0))

    def params(spread):
        training = along(source, server, read_spread=spread)
        return np.abs(Trained(training, task=QUIET).params)

    together = params(0.0)  # replicates differ by the signs of their corners alone
    np.testing.assert_array_equal(together[0], together[1])
    spread = params(1.0)
    np.testing.assert_array_equal(spread, params(1.0))
    one, other = spread
    assert (one != other).any()


def test_an_update_without_gradients_is_no_divergence():
    run = Trained(
        along(simulated(protocols.mindflayer(1, 0.2)), server), evaluations=24
    )
    assert any((trace.counts == 0).any() for trace in run.traces)
    assert (np.asarray(run.state.diverged_step) == -1).all()
    assert all(np.isfinite(chunk.loss).all() for chunk in run.chunks)


def test_a_filter_that_waits_for_a_dead_worker_says_so_in_tables_and_metrics(tmp_path):
    """With one attacker of three it takes no worker twice in three, and one is dead."""
    cluster = Cluster(3, constant(1.0), slowdown=(1.0, 1.0, 1e6))

    def filtered(learning_rate):
        inner = plain(learning_rate)
        return dj.kardam(inner, workers=3, attackers=1, lipschitz=False)

    found = run(
        Experiment(
            question="Does it stall?",
            task=QUIET,
            training=along(Simulation(cluster, protocols.k_async(1)), filtered),
            grid={"learning_rate": RATES},
            seeds=2,
            updates=24,
            evaluate_every=12,
        ),
        str(tmp_path),
    ).results
    assert (found["dropped_in_row"] == 22).all()
    assert found["dropped"].to_numpy() == pytest.approx(22 / 24)
    rows = metrics.read(tmp_path)[1:]
    assert [row["dropped_in_row"] for row in rows] == [10, 22]
    assert [row["dropped"] for row in rows] == pytest.approx([10 / 12, 22 / 24])


@pytest.mark.parametrize("place", ["mean", "each"])
def test_refused_gradients_are_counted_and_not_the_means_of_them(place, tmp_path):
    """Of three gradients an update, every other mean is refused, or every gradient."""

    def every_other(gradients, seen, params, **extra_args):
        return seen % 2 == 0, gradients, seen + 1

    def begin(params):
        return jnp.zeros((), jnp.int32)

    def refusing(tx):
        return dj.refusing(tx, every_other, begin=begin)

    source = simulated(protocols.hardsync(), workers=3)
    if place == "mean":
        training = along(source, lambda learning_rate: refusing(plain(learning_rate)))
    else:
        training = along(source, plain, each=refusing(optax.identity()))
    found = run(
        Experiment(
            question="How many are refused?",
            task=QUIET,
            training=training,
            grid={"learning_rate": RATES},
            seeds=2,
            updates=24,
        ),
        str(tmp_path),
    ).results
    assert found["dropped"].to_numpy() == pytest.approx(0.5)
    assert (found["dropped_in_row"] <= 1).all()


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
    alone = Trained(training, grid={"learning_rate": (0.1,)})
    np.testing.assert_allclose(run.params[:, 0], alone.params[:, 0], rtol=1e-6)


def test_an_arm_may_end_on_its_own():
    source = simulated(protocols.hardsync(), service=constant(1.0))
    arms = [
        Arm(training=along(source, plain), labels={"a": k}, seconds=s)
        for k, s in enumerate((5.0, 9.0, None))
    ]
    made = programs(
        Experiment(
            question="?",
            task=NOISY,
            arms=arms,
            seconds=12.0,
            grid={"learning_rate": (0.1,)},
            evaluations=2,
        )
    )
    assert [program.rule.updates for program in made] == [5, 9, 12]
    assert [program.rule.evaluate_every for program in made] == [2, 4, 6]


def test_a_simulation_may_end_where_every_worker_hangs():
    cluster = dj.cluster.Cluster(2, dj.cluster.infinite_bernoulli(1.0, 0.2))
    protocol = dj.cluster.protocols.k_async(1)
    with pytest.raises(ValueError):
        Simulation(cluster, protocol).trace(0, 1000, math.inf)
    found = Simulation(cluster, protocol, may_hang=True).trace(0, 1000, math.inf)
    assert 0 < found.num_updates < 1000
    with pytest.raises(ValueError):  # not one update more
        Simulation(cluster, protocol).trace(0, found.num_updates + 1, math.inf)
