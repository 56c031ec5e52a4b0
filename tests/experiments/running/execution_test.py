"""Several workers: simulated, on devices, and on fewer devices than workers."""

import functools

import jax
import numpy as np
import optax
import pytest

import delayjax as dj
from experiments import on_devices, optimizer, tasks
from experiments.host import checkpoints
from experiments.running import cells, execution
from experiments.running.trainer import Trainer
from tests.support.cases import shortened
from tests.support.training_runs import QUIET, Trained, program_of

pytestmark = pytest.mark.runs

TASK = tasks.breast_cancer(batch_size=8)
# sums over workers and over a batch have other roundings, in 20 steps of Adam
ROUNDING = dict(rtol=0, atol=2e-5)
RATES, DELAYS = (0.01, 0.03), (0, 3)


def late_adam(learning_rate, delay):
    return dj.delayed(optax.adam(learning_rate), delay, max_delay=3)


def shared(exchange=dj.exchange.mean):
    """Adam behind a late mean over several workers."""

    def make(learning_rate, delay):
        return dj.delayed(exchange(optax.adam(learning_rate)), delay, max_delay=3)

    return make


KINDS = {"simulated": optimizer, "devices": on_devices}


def options(**changes):
    grid = {"learning_rate": RATES, "delay": DELAYS}
    fields = dict(task=TASK, grid=grid, seeds=(0, 1), updates=20, evaluations=2)
    return fields | changes


@functools.cache
def shared_run(kind, workers, exchange="mean"):
    """A run that several tests use."""
    make = shared(getattr(dj.exchange, exchange))
    return Trained(KINDS[kind](make, workers=workers), **options())


def ends(run):
    return execution.held(run.state), losses(run), cells.counters(run.state)


def trained(training, **changes):
    return ends(Trained(training, **options(**changes)))


def losses(run):
    return np.concatenate([chunk.loss for chunk in run.chunks])


def assert_close(ours, theirs, **tolerance):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **tolerance), ours, theirs
    )


def assert_same_training(one, other):
    assert_close(one[0].model, other[0].model, **ROUNDING)
    np.testing.assert_allclose(one[1], other[1], rtol=1e-4)
    # with equal delays there is one count for all
    assert_close(one[2], other[2])


def test_workers_that_share_a_batch_do_what_one_does_with_all_of_it():
    assert_same_training(ends(shared_run("simulated", 4)), trained(late_adam))


@pytest.mark.parametrize(
    ("exchange", "workers"),  # there are only four devices
    shortened(
        [(e, workers) for workers in (4, 8) for e in ("mean", "overlapped_mean")],
        *(("mean", 4), ("overlapped_mean", 8)),
    ),
)
def test_devices_do_what_the_simulation_does(workers, exchange):
    placed, simulated = (
        ends(shared_run(kind, workers, exchange)) for kind in ("devices", "simulated")
    )
    assert_same_training(placed, simulated)


def test_random_delays_are_drawn_apart_and_counted_for_each_worker():
    def make(learning_rate, key):
        delay = dj.delays.uniform(key, 0, 4, axis_name="workers")
        return dj.delayed(
            dj.exchange.mean(optax.sgd(learning_rate)), delay, max_delay=4
        )

    grid = {"learning_rate": RATES}
    state, _, counters = trained(optimizer(make, workers=4), grid=grid)
    assert (counters.staleness_counts.sum(-1) == 4 * 20).all()
    counts = np.asarray(state.staleness_counts)
    assert counts.shape[0] == 4
    assert any((counts[0] != counts[k]).any() for k in range(1, 4))


def test_a_cell_that_diverges_is_marked_at_the_step_at_which_one_worker_s_is():
    changes = dict(grid={"learning_rate": (0.01, 1e30)}, updates=40)

    def mean(learning_rate):
        return dj.exchange.mean(optax.sgd(learning_rate))

    _, result, counters = trained(optimizer(mean, workers=4), **changes)
    expected = trained(optax.sgd, **changes)[2].diverged_step
    assert (expected[:, 0] == -1).all() and (expected[:, 1] > 0).all()
    np.testing.assert_array_equal(counters.diverged_step, expected)
    assert np.isfinite(result[:, :, 0]).all()


@pytest.mark.parametrize("training", [optimizer, on_devices])
def test_one_worker_takes_the_first_of_the_devices_it_is_given(training):
    """It is compiled for that device, whatever devices this machine has."""
    *_, last = jax.devices()
    program = program_of(
        training(lambda: optax.sgd(0.1), workers=1), **options() | {"grid": {}}
    )
    shapes = Trainer(program, devices=[last]).shapes()
    assert {d for x in jax.tree.leaves(shapes) for d in x.sharding.device_set} == {last}


def test_a_checkpoint_goes_on_on_another_number_of_devices(tmp_path):
    run = shared_run("devices", 8, "overlapped_mean")
    kept = checkpoints.Checkpoints(tmp_path)
    kept.save(20, run.state)
    for kind in KINDS:
        shapes = shared_run(kind, 8, "overlapped_mean").trainer.shapes()
        restored = kept.restore(shapes)
        assert_close(restored, run.state, rtol=0, atol=0)
        placed = [x.sharding for x in jax.tree.leaves(shapes)]
        assert [x.sharding for x in jax.tree.leaves(restored)] == placed
    kept.close()


def of_four(task=TASK):
    return program_of(optimizer(shared(), workers=4), **options(task=task))


def of_six_on_four_devices():
    task = tasks.breast_cancer(batch_size=12)
    training = on_devices(shared(), workers=6)
    Trainer(program_of(training, **options(task=task)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optimizer(shared(), workers=0), "`workers` must be at least 1, got 0"),
        (lambda: on_devices(shared(), workers=-1), "`workers` must be at least 1"),
        (
            lambda: program_of(optimizer(shared(), workers=3), **options()),
            "`workers` must divide the examples of a batch, got 3 workers",
        ),
        (
            lambda: of_four(tasks.breast_cancer(batch_size=0)),  # the full batch
            r"must divide the examples.*427",
        ),
        (lambda: of_four(QUIET), "must divide the examples"),  # it has no examples
        (of_six_on_four_devices, "`workers=6` must be a multiple of the 4 dev"),
        *(
            (
                lambda d=devices, m=model: on_devices(shared(), model=m).placed(d),
                f"`workers` must be given with {devices} dev",
            )
            for devices, model in [(1, 1), (4, 4), (3, 2)]
        ),
    ],
)
def test_workers_that_cannot_be_are_refused_before_any_work(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def lowered(trainer):
    return trainer.run_chunk.lower(trainer.shapes(), *trainer.feed.shapes()).as_text()


def test_a_late_sum_between_devices_is_kept_apart_from_its_use():
    """With several workers on a device, too; else a compiler may use the sum at once.

    Simulated on one device, nothing is sent, and there is nothing to hide.
    """
    late = on_devices(shared(dj.exchange.overlapped_mean), workers=4)
    one_a_device = Trainer(program_of(late, **options()))
    two_a_device, simulated = (
        shared_run(kind, 8, "overlapped_mean").trainer
        for kind in ("devices", "simulated")
    )
    assert "optimization_barrier" in lowered(one_a_device)
    assert "optimization_barrier" in lowered(two_a_device)
    assert "optimization_barrier" not in lowered(simulated)


def test_by_default_there_is_a_worker_for_each_device():
    program = program_of(on_devices(shared()), **options())
    assert program.job.workers == jax.device_count()
    assert Trainer(program).shapes().state.step.sharding.num_devices == 4
