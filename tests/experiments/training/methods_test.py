"""Averaging methods, whose workers have different models, trained by the runner."""

import dataclasses
import functools
import inspect
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from delayjax.cluster import Cluster, Communication, constant, exponential, protocols
from experiments import Simulation, replicas
from experiments.running.trainer import Trainer
from experiments.training import methods
from tests.experiments.training.server import assert_cells_are, server, versions_of
from tests.support.cases import shortened
from tests.support.training_runs import (
    CURVATURES,
    QUIET,
    Trained,
    check_resumed,
    into,
    program_of,
)

pytestmark = pytest.mark.runs

METHODS = {
    name: make
    for name, make in vars(methods).items()
    if inspect.isfunction(make) and make.__annotations__.get("return") is methods.Method
    if not name.startswith("_")
}
NEEDED = {
    "outer": dict(server=optax.sgd(0.9, 0.3, nesterov=True), period=4, delay=2),
    "eager_outer": dict(server=optax.sgd(0.9, 0.3, nesterov=True), period=4),
    "local_sgd": dict(period=3),
    "dasgd": dict(period=4, delay=2),
    "async_easgd": dict(period=2),
    "wagma": dict(period=3),
}
FOUR = Cluster(4, exponential(1.0))


def sgd(learning_rate):
    return optax.sgd(learning_rate)


def run_of(method, make=sgd, cluster=FOUR, **changes):
    return Trained(replicas(method, cluster, make), **changes)


def one(rate, **changes):
    """One cell, without noise."""
    return dict(task=QUIET, seeds=(3,), grid={"learning_rate": (rate,)}) | changes


# tests below compare these with a loop or with another method; the two methods that are
# in neither set differ from similar methods only in their timetables
COMPARED = {"allreduce_sgd", "async_sgd", "async_measgd", "local_sgd", "wagma"}
LOWERING = METHODS.keys() - COMPARED - {"async_easgd", "hogwild_sgd"}


@functools.cache
def quiet_run(name):
    return run_of(METHODS[name](**NEEDED.get(name, {})), **one(0.03, updates=60))


@pytest.mark.parametrize("name", sorted(LOWERING))
def test_every_method_lowers_the_loss(name):
    run = quiet_run(name)
    assert run.losses[-1] < 0.5 * run.trainer.evaluate(run.trainer.init())["train_loss"]


def test_the_mean_gradient_at_a_barrier_is_a_server_that_waits_for_all():
    run = run_of(methods.allreduce_sgd(), server)
    source = Simulation(FOUR, protocols.hardsync())
    for seed, trace in zip(run.program.seeds, run.traces, strict=True):
        expected = source.trace(seed, 24, math.inf).seconds
        np.testing.assert_allclose(trace.seconds, expected)
    assert_cells_are(run)


def test_a_tuned_outer_step_goes_that_share_of_the_way_to_the_mean_of_the_models():
    """After the first round it is x + eta (mean - x), for each eta of the grid."""
    rates, short = (1.0, 0.5), dict(task=QUIET, seeds=(3,), updates=3)
    mean = run_of(methods.local_sgd(3), **short, grid={"learning_rate": (0.03,)})
    run = run_of(
        methods.outer(lambda rate: optax.sgd(rate), 3),
        **short,
        grid={"learning_rate": (0.03,), "rate": rates},
    )
    begun = jax.tree.leaves(mean.trainer.init().model.params)[0]
    change = (mean.params - begun)[:, 0]
    np.testing.assert_allclose(
        run.params - begun, np.stack([rate * change for rate in rates], 1), rtol=1e-5
    )
    # one step later, the workers differ, but the evaluated model, the center, does not
    later = run_of(
        methods.outer(lambda rate: optax.sgd(rate), 3),
        **short | {"updates": 4},
        grid={"learning_rate": (0.03,), "rate": rates},
    )
    at_three, at_four = (
        one.trainer.evaluate(one.state)["train_loss"] for one in (run, later)
    )
    np.testing.assert_allclose(at_four, at_three, rtol=1e-6)


def test_an_outer_step_takes_the_time_of_its_message_and_moves_by_what_is_sent():
    """A step takes 1 s, an all-reduce 2 (1 - 1 / 4) 8 bytes at 3 bytes a second."""
    link = Communication(message_bytes=8.0, bytes_per_second=3.0)
    cluster = Cluster(4, constant(1.0), communication=link)

    def nothing_sent(tree, step):
        return jax.tree.map(lambda leaf: 0.0 * leaf, tree), lambda message: message

    method = methods.outer(lambda rate: optax.sgd(rate), 3, compress=nothing_sent)
    changes = {"grid": {"learning_rate": (0.03,), "rate": (1.0,)}, "updates": 6}
    run = run_of(method, **one(0.03, cluster=cluster) | changes)
    (trace,) = run.traces
    exchanged = 4.0 * np.floor(np.arange(1, 7) / 3)
    np.testing.assert_allclose(trace.seconds, np.arange(1, 7) + exchanged)
    # the center does not change, as nothing of the change is sent
    begun = jax.tree.leaves(run.trainer.init().model.params)[0]
    evaluated = run.trainer.evaluate(run.state)["train_loss"]
    of_begun = 0.5 * CURVATURES @ np.square(np.asarray(begun).reshape(-1, 2)[0])
    np.testing.assert_allclose(evaluated, of_begun, rtol=1e-6)


def test_fragments_are_exchanged_in_turn_and_evaluated_as_one_model():
    """Each coordinate is a leaf and a fragment: the first is exchanged at 2, 6, 10."""
    halves = {"a": 0, "b": 1}

    def joined(model):
        return jnp.stack([model["a"], model["b"]])

    task = dataclasses.replace(
        QUIET,
        init=lambda key: {name: QUIET.init(key)[i] for name, i in halves.items()},
        loss=lambda model, batch: QUIET.loss(joined(model), batch),
        evaluate=lambda model: QUIET.evaluate(joined(model)),
    )
    link = Communication(message_bytes=8.0, bytes_per_second=3.0)
    cluster = Cluster(4, constant(1.0), communication=link)
    method = methods.outer(lambda rate: optax.sgd(rate), 4, fragments=2)
    changes = {"grid": {"learning_rate": (0.1,), "rate": (0.7,)}, "updates": 10}
    run = run_of(method, **one(0.1, cluster=cluster, task=task) | changes)
    center = np.ones(2)
    for leaf, lengths in enumerate([(2, 4, 4), (4, 4)]):
        for steps in lengths:
            change = center[leaf] * (1 - (1 - 0.1 * CURVATURES[leaf]) ** steps)
            center[leaf] -= 0.7 * change
    loss = 0.5 * CURVATURES @ np.square(center)
    np.testing.assert_allclose(run.losses[-1][0, 0], loss, rtol=1e-5)
    (trace,) = run.traces  # a step: 1 s; half of the model: 2 (1 - 1 / 4) 4 bytes
    exchanged = 2.0 * np.floor(np.arange(1, 11) / 2)
    np.testing.assert_allclose(trace.seconds, np.arange(1, 11) + exchanged)


@pytest.mark.parametrize("rate", [3.0, 12.0])
@pytest.mark.parametrize(
    "method", [methods.outer(optax.sgd, 3, 2), methods.eager_outer(optax.sgd, 2)]
)
def test_a_late_outer_step_sends_a_slice_beside_each_step(method, rate):
    """A step takes 1 s; half of the model, 2 (1 - 1 / 4) 4 bytes, 2 s or 0.5 s."""
    link = Communication(message_bytes=8.0, bytes_per_second=rate)
    cluster = Cluster(4, constant(1.0), communication=link)
    times = method.timetable(cluster, 6, 0)
    pace = max(1.0, 2 * (1 - 1 / 4) * 8.0 / 2 / rate)
    np.testing.assert_allclose(times.seconds, 1.0 + pace * np.arange(6))


def test_an_eager_step_of_equal_workers_has_a_fourth_of_the_fresh_change():
    """Without noise all dl^j are equal: x <- x - eta (dl_r / 4 + 3 dl_{r-1} / 4)."""
    changes = {"grid": {"learning_rate": (0.1,), "rate": (0.9, 0.5)}, "updates": 9}
    method = methods.eager_outer(lambda rate: optax.sgd(rate), 3)
    run = run_of(method, **one(0.1) | changes)
    begun = np.asarray(run.begun.model.params, np.float64).reshape(-1, 2)[0]
    for cell, rate in enumerate((0.9, 0.5)):
        x, last = begun, np.zeros(2)
        for _ in range(3):
            fresh = x - (1 - 0.1 * CURVATURES) ** 3 * x
            x, last = x - rate * (fresh / 4 + 3 * last / 4), fresh
        np.testing.assert_allclose(run.params[0, cell], np.tile(x, (4, 1)), rtol=1e-5)
        loss = 0.5 * CURVATURES @ np.square(x)
        np.testing.assert_allclose(run.losses[-1][0, cell], loss, rtol=1e-5)


def test_a_late_gradient_of_eager_sgd_counts_in_the_next_step_alone():
    """x <- x - eta/P sum_p (g_p if in time, and the last g_p if it was late)."""
    method, steps, rate = methods.eager_sgd(), 30, 0.1
    run = run_of(method, **one(rate, updates=steps))
    training = replicas(method, FOUR, sgd)
    in_time = training.timetable(3, steps).in_time
    late_twice = ~in_time[1:] & ~in_time[:-1]
    assert late_twice.any()
    x = np.asarray(run.begun.model.params, np.float64).reshape(-1, 2)[0]
    before, late = np.zeros(2), np.zeros(4, bool)
    for now in in_time:
        fresh = CURVATURES * x
        x = x - rate / 4 * (now.sum() * fresh + late.sum() * before)
        before, late = fresh, ~now
    np.testing.assert_allclose(run.params[0, 0], x, rtol=1e-4)


def test_models_averaged_at_each_step_are_gradients_averaged():
    """With SGD the mean of x - eta g^i is x - eta mean g^i, on every worker."""
    # 23 is odd: on a quadratic, averages of period 2 would have the same mean at 24
    run = run_of(methods.local_sgd(1), updates=23)
    assert run.params.shape == (2, 2, 4, 2)
    assert_cells_are(run, momentum=0.0)


def test_what_is_seen_of_a_method_s_state_can_be_measured():
    training = replicas(methods.local_sgd(3), FOUR, sgd, seen=lambda state: state.step)
    measure = {"steps": lambda model, task: model.state.astype(jnp.float32)}
    run = Trained(of=Trainer(program_of(training, updates=7), metrics=measure))
    assert (np.asarray(run.trainer.evaluate(run.state)["steps"]) == 7).all()


def last_before(seconds, times):
    """The index of the last of the sorted times that has passed, or -1."""
    return np.searchsorted(times, np.asarray(seconds) * (1 + 1e-12), side="right") - 1


def losses_of(versions):
    """The losses of a center, or of workers that all begin at the same model."""
    return [0.5 * CURVATURES @ np.square(x.reshape(-1, 2)[0]) for x in versions]


def test_pushing_every_gradient_is_asynchronous_sgd():
    """DOWNPOUR of period 1 and k_async(1) have the same loss after as many visits."""
    run = run_of(methods.async_sgd(), **one(0.1, updates=40, evaluations=40))
    seconds, losses = run.curve
    trace = Simulation(FOUR, protocols.k_async(1)).trace(3, 160, math.inf)
    served = losses_of(versions_of(run, 0, 0.1, trace=trace, momentum=0.0))
    index = last_before(seconds, trace.seconds) + 1
    np.testing.assert_allclose(losses, np.asarray(served)[index], rtol=1e-5)


def test_elastic_averaging_along_a_cluster_is_an_event_loop():
    """Asynchronous EASGD by hand: one visit after the other, in float64."""
    rate, moving, momentum, number = 0.1, 0.2, 0.5, 24
    method = methods.async_measgd(moving_rate=moving, momentum=momentum)
    run = run_of(method, **one(rate, evaluations=number))
    seconds, losses = run.curve
    start = np.asarray(run.begun.model.params, np.float64)[0, 0, 0]  # of a worker
    trace = Simulation(FOUR, protocols.k_async(1)).trace(3, 200, math.inf)
    center, models, speeds = start, np.tile(start, (4, 1)), np.zeros((4, len(start)))

    def local_step(w, pulled):
        speeds[w] = momentum * speeds[w] - rate * CURVATURES * models[w]
        models[w] += speeds[w] - pulled

    centers = [center]
    for w in trace.worker:
        pulled = moving * (models[w] - center)
        center = center + pulled
        local_step(w, pulled)
        centers.append(center)
    expected = np.asarray(losses_of(centers))[last_before(seconds, trace.seconds) + 1]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


RESUMED = {
    "wagma": methods.wagma(2, period=3),
    "ea_wild": methods.ea_wild(2),
    "eager_sgd": methods.eager_sgd(),
}


@pytest.mark.parametrize("name", shortened(RESUMED, "wagma"))
def test_a_resumed_run_has_the_same_bits(name):
    saved = []
    run = run_of(RESUMED[name], server, save=into(saved))
    check_resumed(run, saved[0])


def test_the_model_of_replicas_is_their_mean_and_of_a_center_the_center():
    for name, mean in (("gossip", True), ("sync_easgd", False)):
        run = quiet_run(name)
        params = run.params  # [seeds, rates, workers, dimensions]
        assert params.shape == (1, 1, 4, 2)
        model = params.mean(axis=2)
        if not mean:
            (model,) = jax.tree.leaves(optax.tree.get(run.state.memory.state, "center"))
        loss = 0.5 * (CURVATURES * np.square(model)).sum(axis=-1)
        np.testing.assert_allclose(run.losses[-1], loss, rtol=1e-5)


def test_blending_nothing_of_one_s_own_is_overwriting():
    changes = one(0.03, updates=60)
    blended, overwritten = (
        run_of(methods.dasgd(4, 2, *merge), **changes).curve
        for merge in (("blended", 0.0), ("overwriting",))
    )
    np.testing.assert_allclose(blended, overwritten, rtol=1e-6)
    assert not np.allclose(quiet_run("dasgd").curve, overwritten, rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "cluster", "message"),
    [
        (lambda: methods.local_sgd(0), FOUR, r"`period` must be at least 1, got 0"),
        (lambda: methods.wagma(3), FOUR, r"`group_size` must be a power of two, got 3"),
        (lambda: methods.wagma(), Cluster(6, constant(1.0)), r"power of two.* 6"),
        (lambda: methods.wagma(8), FOUR, r"`group_size` must be at most.*4, got 8"),
        (lambda: methods.sgp(5), FOUR, r"`peers` must be at most 2"),
        (lambda: methods.dasgd(4, 2, "mixed"), FOUR, "`merge` must be among correct"),
        (
            lambda: methods.gossip(),
            Cluster(4, constant(1.0), slowdown=[1.0, 1.0, 1.0, 2.0]),
            "must be equally fast",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(make, cluster, message):
    with pytest.raises(ValueError, match=message):
        run_of(make(), cluster=cluster)


def test_late_models_in_a_sum_are_as_old_as_the_cluster_says():
    """WAGMA-SGD of pairs by hand, along its timetable, in float64."""
    rate, period, steps = 0.1, 5, 40
    run = run_of(methods.wagma(2, period=period), **one(rate, updates=steps))
    (trace,) = run.traces
    ages = (trace.update - trace.read_version).reshape(steps, 4)
    assert ages.max() > 1
    counts = run.state.staleness_counts[0, 0]
    expected = np.bincount(ages.ravel(), minlength=len(counts))
    np.testing.assert_array_equal(counts, expected)
    start = np.asarray(run.begun.model.params)
    models = np.asarray(start[0, 0], np.float64)  # [workers, dimensions]
    moves = [models]
    for t in range(steps):
        moved = models - rate * CURVATURES * models
        moves.append(moved)
        sent = np.stack([moves[t + 1 - ages[t, w]][w] for w in range(4)])
        late = ages[t][:, None] > 0
        total = sent + sent[np.arange(4) ^ (1 << t % 2)]  # of a pair of workers
        models = np.where(late, (total + moved) / 3, total / 2)
        if (t + 1) % period == 0:
            models = np.tile(moved.mean(axis=0), (4, 1))
    np.testing.assert_allclose(run.params[0, 0], models, rtol=2e-4)


class Refused(NamedTuple):
    dropped: jax.Array
    dropped_in_row: jax.Array


def test_what_each_replica_refuses_is_counted_for_its_own_cell():
    def refuses_at_small_rates(learning_rate):
        def update(grads, state, params=None):
            refused = (jnp.isfinite(grads).all() & (learning_rate < 0.07)).astype(int)
            return -0.01 * grads, Refused(*(count + refused for count in state))

        zeros = Refused(jnp.int32(0), jnp.int32(0))
        return optax.GradientTransformation(lambda params: zeros, update)

    run = run_of(methods.local_sgd(period=3), refuses_at_small_rates)
    counted = run.trainer.counters(run.state)
    np.testing.assert_array_equal(counted.dropped, [[4 * 24, 0]] * 2)
    np.testing.assert_array_equal(counted.dropped_in_row, [[24, 0]] * 2)
    assert (counted.staleness_counts.sum(-1) == 4 * 24).all()


class Counting(NamedTuple):
    """A state of a user's optimizer, with the field names of the methods' states."""

    step: jax.Array  # float32 [], 3 for each gradient
    center: jax.Array  # int32 []
    memory: optax.OptState


def counting(learning_rate):
    """SGD that counts its updates in two fields, which do not change the updates."""
    sgd_ = optax.sgd(learning_rate)

    def init(params):
        return Counting(jnp.float32(1.0), jnp.int32(5), sgd_.init(params))

    def update(grads, state, params=None):
        updates, memory = sgd_.update(grads, state.memory, params)
        updates = jax.tree.map(lambda u: u + 0.0 * state.step, updates)
        return updates, Counting(state.step + 3.0, state.center + 1, memory)

    return optax.GradientTransformation(init, update)


@pytest.mark.parametrize(
    "name",
    shortened(
        sorted(METHODS),
        *("allreduce_sgd", "eager_sgd", "local_sgd", "sync_easgd", "async_sgd"),
    ),
)
def test_a_method_leaves_the_counts_of_a_user_s_optimizer_as_they_are(name):
    method, updates = METHODS[name](**NEEDED.get(name, {})), 60
    run, plain = run_of(method, counting, **one(0.03, updates=updates)), quiet_run(name)
    options = {"is_leaf": lambda x: isinstance(x, Counting)}
    (kept,) = [
        leaf
        for leaf in jax.tree.leaves(run.state.memory.state, **options)
        if isinstance(leaf, Counting)
    ]
    counts = np.asarray(kept.center) - 5  # gradients of each worker, [1, 1, workers]
    np.testing.assert_array_equal(kept.step, 1.0 + 3.0 * counts)
    # a server takes gradients one by one: a worker has fewer of them than updates
    if method.model != "center" or name == "sync_easgd":
        assert (counts == updates).all()
    else:
        gradients = sum(len(trace.worker) for trace in run.traces)
        assert counts.sum() == gradients
    np.testing.assert_allclose(run.losses, plain.losses, rtol=1e-5)


@pytest.mark.parametrize("make", [sgd, counting])
def test_an_average_is_computed_only_where_it_is_due(make):
    """One clock for all cells: with one for each cell, each step would compute it."""
    program = program_of(replicas(methods.local_sgd(3), FOUR, make))
    trainer = Trainer(program)
    arguments = trainer.shapes(), *trainer.feed.shapes()
    (chunk,) = jax.make_jaxpr(trainer.run_chunk)(*arguments).eqns
    (loop,) = (e for e in chunk.params["jaxpr"].eqns if e.primitive.name == "while")
    body = loop.params["body_jaxpr"].eqns
    assert "cond" in {equation.primitive.name for equation in body}
