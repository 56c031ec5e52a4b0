"""Several workers: simulated, run on devices, and on fewer devices than workers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from experiments import on_devices, optimizer, tasks
from experiments.running import counters, execution
from experiments.running.host import checkpoints
from experiments.running.trainer import Trainer
from tests.support.cases import shortened
from tests.support.training_runs import QUIET, Trained, program_of

TASK = tasks.breast_cancer(batch_size=8)
# sums over workers and over a batch round differently, in 20 steps of Adam
ROUNDING = dict(rtol=0, atol=2e-5)
RATES, DELAYS = (0.01, 0.03), (0, 3)


def late_adam(learning_rate, delay):
    return dj.delayed(optax.adam(learning_rate), delay, max_delay=3)


def shared(exchange=dj.exchange.mean):
    """Adam behind a late mean of several workers."""

    def make(learning_rate, delay):
        return dj.delayed(exchange(optax.adam(learning_rate)), delay, max_delay=3)

    return make


def options(**changes):
    grid = {"learning_rate": RATES, "delay": DELAYS}
    own = dict(task=TASK, grid=grid, seeds=(0, 1), updates=20, evaluations=2)
    return own | changes


def trained(training, **changes):
    run = Trained(training, **options(**changes))
    return execution.held(run.state), losses(run), counters.of(run.state)


def losses(run):
    return np.concatenate([chunk.loss for chunk in run.chunks])


def assert_close(ours, theirs, **tolerance):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **tolerance), ours, theirs
    )


def assert_same_training(one, other):
    assert_close(one[0].model, other[0].model, **ROUNDING)
    np.testing.assert_allclose(one[1], other[1], rtol=1e-4)
    # of equal delays there is one count for all
    assert_close(one[2], other[2])


def test_workers_that_share_a_batch_do_what_one_does_with_all_of_it():
    assert_same_training(trained(optimizer(shared(), workers=4)), trained(late_adam))


@pytest.mark.parametrize(
    ("exchange", "workers"),  # of devices there are four
    shortened(
        [(e, workers) for workers in (4, 8) for e in ("mean", "overlapped_mean")],
        *(("mean", 4), ("overlapped_mean", 8)),
    ),
)
def test_devices_do_what_the_simulation_does(workers, exchange):
    make = shared(getattr(dj.exchange, exchange))
    simulated = trained(optimizer(make, workers=workers))
    assert_same_training(trained(on_devices(make, workers=workers)), simulated)


def test_the_overlapped_mean_is_one_update_later():
    def late(learning_rate):
        return dj.delayed(optax.adam(learning_rate), 1, warmup="skip")

    def overlapped(learning_rate):
        return dj.exchange.overlapped_mean(optax.adam(learning_rate))

    grid = {"learning_rate": RATES}
    expected, _, _ = trained(late, grid=grid)
    state, _, counters = trained(optimizer(overlapped, workers=4), grid=grid)
    assert_close(state.model, expected.model, **ROUNDING)
    # at update 0 nothing has been sent
    np.testing.assert_array_equal(counters.staleness_counts, [[[0, 19]] * 2] * 2)


def test_random_delays_are_drawn_apart_and_counted_for_each_worker():
    def make(learning_rate, key):
        delay = dj.delays.uniform(key, 0, 4, axis_name="workers")
        return dj.delayed(
            dj.exchange.mean(optax.sgd(learning_rate)), delay, max_delay=4
        )

    grid = {"learning_rate": RATES}
    state, _, counters = trained(optimizer(make, workers=4), grid=grid)
    assert (counters.staleness_counts.sum(-1) == 4 * 20).all()
    apart = np.asarray(state.staleness_counts)
    assert apart.shape[0] == 4
    assert any((apart[0] != apart[k]).any() for k in range(1, 4))


@pytest.mark.parametrize("kind", [optimizer, on_devices])
def test_each_worker_draws_random_numbers_of_its_own_at_each_update(kind):
    def loss(params, batch, key):
        return params @ jax.random.normal(key, (3,)) + batch.sum()

    task = tasks.Task(
        init=lambda key: jnp.zeros(3),
        loss=loss,
        batches=lambda seed, start, stop: np.zeros((stop - start, 4), np.float32),
        evaluate=lambda params: {"train_loss": params.sum()},
    )

    def mean(learning_rate):
        return dj.exchange.mean(optax.sgd(learning_rate))

    changes = dict(task=task, seeds=(7,), updates=2, grid={"learning_rate": (1.0,)})
    state = trained(kind(mean, workers=4), **changes)[0]
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 7), 1)
    of_step = [jax.random.fold_in(key, step) for step in range(2)]
    drawn = [
        jax.random.normal(jax.random.fold_in(key, worker), (3,))
        for key in of_step
        for worker in range(4)
    ]
    expected = -np.sum(drawn, axis=0) / 4
    np.testing.assert_allclose(state.model.params[0, 0], expected, rtol=1e-5)


def test_a_cell_that_diverges_is_marked_at_the_step_at_which_one_worker_s_is():
    changes = dict(grid={"learning_rate": (0.01, 1e30)}, updates=40)

    def mean(learning_rate):
        return dj.exchange.mean(optax.sgd(learning_rate))

    _, found, counters = trained(optimizer(mean, workers=4), **changes)
    expected = trained(optax.sgd, **changes)[2].diverged_step
    assert (expected[:, 0] == -1).all() and (expected[:, 1] > 0).all()
    np.testing.assert_array_equal(counters.diverged_step, expected)
    assert np.isfinite(found[:, :, 0]).all()


@pytest.mark.parametrize("training", [optimizer, on_devices])
def test_one_worker_takes_the_first_of_the_devices_it_is_given(training):
    """And is compiled for it, whatever device this machine has."""
    *_, last = jax.devices()
    program = program_of(
        training(lambda: optax.sgd(0.1), workers=1), **options() | {"grid": {}}
    )
    shapes = Trainer(program, devices=[last]).shapes()
    assert {d for x in jax.tree.leaves(shapes) for d in x.sharding.device_set} == {last}


def test_a_state_holds_parameters_once_and_histories_for_each_worker():
    made = Trainer(program_of(on_devices(shared(), workers=4), **options()))
    split, shapes = made.init(), made.shapes()
    assert jax.tree.map(np.shape, split) == jax.tree.map(lambda x: x.shape, shapes)
    held = execution.held(split)
    cells = (2, 4)  # seeds; steps by delays
    for params, slots in zip(
        jax.tree.leaves(held.model.params),
        jax.tree.leaves(held.memory.gradients.slots),
        strict=True,
    ):
        assert params.shape[:2] == cells
        assert slots.shape == (4, *cells, 4, *params.shape[2:])  # workers, slots
        assert slots.sharding.spec[0] == "workers"


def test_a_checkpoint_goes_on_on_another_number_of_devices(tmp_path):
    run = Trained(on_devices(shared(), workers=8), **options())
    kept = checkpoints.Checkpoints(tmp_path, kept=1, held=execution.held)
    kept.save(run.state)
    for kind in (optimizer, on_devices):
        made = Trainer(program_of(kind(shared(), workers=8), **options()))
        shapes = made.shapes()
        back = kept.restore(shapes)
        assert_close(back, run.state, rtol=0, atol=0)
        placed = [x.sharding for x in jax.tree.leaves(shapes)]
        assert [x.sharding for x in jax.tree.leaves(back)] == placed
    kept.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optimizer(shared(), workers=0), "`workers` must be at least 1, got 0"),
        (lambda: on_devices(shared(), workers=-1), "`workers` must be at least 1"),
        (
            lambda: optimizer(shared(), workers=3),
            "`workers` must divide the examples of a batch, got 3 workers",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_before_any_work(make, message):
    with pytest.raises(ValueError, match=message):
        program_of(make(), **options())


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (tasks.breast_cancer(batch_size=0), r"must divide the examples.*427"),  # full
        (QUIET, "must divide the examples"),  # there are none
    ],
)
def test_batches_that_the_workers_do_not_divide_are_refused(task, message):
    with pytest.raises(ValueError, match=message):
        program_of(optimizer(shared(), workers=4), **options(task=task))


def test_workers_that_the_devices_do_not_divide_are_refused():
    task = tasks.breast_cancer(batch_size=12)
    program = program_of(on_devices(shared(), workers=6), **options(task=task))
    with pytest.raises(ValueError, match="`workers=6` must be a multiple of the 4 dev"):
        Trainer(program)


def lowered(training):
    trainer = Trainer(program_of(training, **options()))
    given = trainer.shapes(), *trainer.given_shapes()
    return trainer.run_chunk.lower(*given).as_text()


@pytest.mark.parametrize("workers", [4, 8], ids=["one a device", "two a device"])
def test_a_late_sum_between_devices_is_kept_apart_from_its_use(workers):
    """Of several workers a device, too: else a compiler uses the sum at once.

    Simulated on one device, nothing is sent, and nothing is to be hidden.
    """
    make = shared(dj.exchange.overlapped_mean)
    assert "optimization_barrier" in lowered(on_devices(make, workers=workers))
    assert "optimization_barrier" not in lowered(optimizer(make, workers=workers))


def test_by_default_there_is_a_worker_for_each_device():
    program = program_of(on_devices(shared()), **options())
    assert program.rule.workers == jax.device_count()
    assert Trainer(program).shapes().state.step.sharding.num_devices == 4


@pytest.mark.parametrize(("devices", "model"), [(1, 1), (4, 4), (3, 2)])
def test_one_device_has_no_default_number_of_workers(devices, model):
    training = on_devices(shared(), model=model)
    with pytest.raises(ValueError, match=f"`workers` must be given with {devices} dev"):
        training.placed(devices)


@pytest.mark.parametrize("workers", [4, 8], ids=["one a device", "two a device"])
def test_groups_of_devices_do_what_simulated_groups_do(workers):
    """Leaves that differ between groups alone stay so where several are simulated."""

    def make(learning_rate):
        return dj.exchange.late_between_groups(optax.adam(learning_rate), workers // 2)

    changes = dict(grid={"learning_rate": RATES})
    simulated = trained(optimizer(make, workers=workers, groups=2), **changes)
    placed = trained(on_devices(make, workers=workers, groups=2), **changes)
    assert_same_training(placed, simulated)
