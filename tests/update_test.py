"""Training along an arm is a server that keeps every version, gradient by gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import default
from experiments import build, grid, train

RATES = (0.05, 0.1)
CURVATURES, NOISE, MOMENTUM = np.array([0.3, 1.0]), 0.5, 0.9


def arm_config(arm, **changes):
    """Noisy quadratics under one arm, two rates and two seeds."""
    config = default.get_config()
    config.task.name = "quadratic"
    config.task.eigenvalues = tuple(CURVATURES.tolist())
    config.task.noise = NOISE
    config.metric = "train_loss"
    config.opt.name = ("sgd",)
    config.opt.sgd.learning_rate = RATES
    config.opt.sgd.momentum = MOMENTUM
    config.seeds = (3, 5)
    config.cluster.arms = (arm,)
    config.cluster.workers = 4
    config.cluster.evaluations = 3
    config.steps = 24
    config.update_from_flattened_dict(changes)
    return config


def trained(config, save=lambda state: None):
    """Trainer, final state and what each chunk reported."""
    (program,) = grid.programs(config)
    course = None
    if program.arm:
        config = build.for_arm(config, program.arm)
        course = build.course(config, program.arm)
        config.steps, config.chunk = course.steps, course.chunk
    trainer = train.trainer(config, program, build.task(config), course)
    chunks = []
    state = train.run(
        trainer,
        trainer.init(),
        save=save,
        report=lambda step, chunk, counters, seconds: chunks.append(chunk),
        profile_dir="",
    )
    return trainer, state, chunks


def data_seed(config, seed):
    mixed = np.random.SeedSequence([config.data_seed, seed]).generate_state(1)
    return int(mixed[0])


def server(trainer, s, rate, factor=None, after=None, compensate=0.0):
    """One cell in float64. `factor` weights a gradient, `after` the step."""
    config, trace = trainer.config, trainer.course.traces[s]
    gradients = trainer.course.gradients(config.steps)[s]
    noise = build.task(config).batches(data_seed(config, config.seeds[s]), 0, gradients)
    x = np.asarray(trainer.init().params[s, 0], np.float64)
    velocity, versions = np.zeros_like(x), [x]
    for t in range(config.steps):
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


def assert_cells_are(trainer, state, **rule):
    for s, c in np.ndindex(2, 2):
        expected = server(trainer, s, RATES[c], **rule)
        # float32 against float64
        np.testing.assert_allclose(state.params[s, c], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "arm",
    [
        "hardsync()",
        "k_async(1)",
        "n_softsync(2) workers=6 service=pareto(1.0, 1.5)",
        "k_batch_async(3)",
        "mindflayer(2, 0.8)",  # some updates have no gradient, all a divisor of 2 p P
        "ringmaster(2)",
    ],
)
def test_an_arm_is_trained_as_its_server_would(arm):
    trainer, state, _ = trained(arm_config(arm))
    assert_cells_are(trainer, state)


def test_a_law_before_the_optimizer_weights_each_gradient_by_its_own_age():
    config = arm_config("n_softsync(2)", **{"modulation.law": ("inverse",)})
    config.modulation.placement = ("before",)
    trainer, state, _ = trained(config)
    assert_cells_are(trainer, state, factor=lambda tau: 1 / max(1, tau))


def test_a_law_after_it_scales_the_step_by_the_mean_age():
    config = arm_config("n_softsync(2)", **{"modulation.law": ("inverse",)})
    trainer, state, _ = trained(config)
    assert_cells_are(trainer, state, after=lambda mean: 1 / max(1, mean))


@pytest.mark.parametrize("placement", ["before", "after"])
def test_by_mean_is_one_factor_of_an_arm(placement):
    config = arm_config("k_async(1)", **{"modulation.law": ("by_mean",)})
    config.modulation.placement = (placement,)
    trainer, state, _ = trained(config)
    ages = [trace.update - trace.read_version for trace in trainer.course.traces]
    factor = 1 / np.mean(np.concatenate(ages))
    assert_cells_are(trainer, state, factor=lambda tau: factor)


def test_capped_knows_the_workers_of_its_arm():
    arm = "k_async(1) workers=3 service=pareto(1.0, 1.1)"
    config = arm_config(arm, **{"modulation.law": ("capped",)})
    trainer, state, _ = trained(config)
    assert trainer.course.max_staleness > 3
    assert_cells_are(trainer, state, after=lambda tau: min(1, 3 / max(tau, 1e-9)))


def test_compensation_acts_on_each_gradient_before_the_mean():
    config = arm_config("n_softsync(2)", **{"compensation.name": ("dc",)})
    config.compensation.strength = (2.0,)
    trainer, state, _ = trained(config)
    assert_cells_are(trainer, state, compensate=2.0)


def test_asgd_at_constant_speed_is_a_constant_delay():
    workers = 5
    changes = {"steps": 30, "chunk": 10, "checkpoint_every": 10, "task.noise": 0.0}
    config = arm_config("k_async(1) workers=5 service=constant(1.0)", **changes)
    config.delay.value = (workers - 1,)
    _, arm, _ = trained(config)
    config.cluster.arms = ()
    _, delayed, _ = trained(config)
    # without noise a gradient is that of its version, whenever it is taken; while none
    # is old enough both use that of version 0
    np.testing.assert_allclose(arm.params, delayed.params, rtol=1e-5)


def test_hardsync_is_serial_training_on_the_union_of_the_batches():
    config = arm_config("hardsync() workers=4 batch_size=5")
    config.task.name, config.cluster.evaluations = "breast_cancer", 2
    config.steps, config.chunk, config.checkpoint_every = 12, 6, 6
    _, arm, _ = trained(config)
    config.cluster.arms, config.task.batch_size, config.delay.value = (), 20, (0,)
    _, serial, _ = trained(config)
    # a mean of four means and one of all differ by rounding
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
        arm.params,
        serial.params,
    )


def test_ringleader_keeps_the_gradients_of_a_round_in_its_tables():
    changes = {"task.noise": 0.0, "opt.sgd.momentum": 0.0, "steps": 4}
    config = arm_config("ringleader() service=constant(1.0)", **changes)
    trainer, state, _ = trained(config)
    start = np.asarray(trainer.init().params)
    # all four updates of a round move along its one mean, that of version 0
    rates = np.asarray(RATES)[:, None]
    expected = start * (1 - 4 * rates * CURVATURES)
    np.testing.assert_allclose(state.params, expected, rtol=1e-5)
    tables = jax.tree.leaves(state.opt_state.aggregation_state)[0]
    assert tables.shape == (2, 2, 2, 4, 2)  # seeds, cells, rounds, workers, parameters


def test_each_gradient_has_a_batch_of_its_own():
    trainer, _, _ = trained(arm_config("mindflayer(2, 0.8)"))
    arrivals, batches = trainer.given(6, 20)
    there = arrivals.staleness >= 0
    assert not there.all()
    for s, seed in enumerate(trainer.config.seeds):
        first, last = (int(trainer.course.gradients(step)[s]) for step in (6, 20))
        drawn = build.task(trainer.config).batches(
            data_seed(trainer.config, seed), first, last
        )
        np.testing.assert_array_equal(batches[:, s][there[:, s]], drawn)
        assert (batches[:, s][~there[:, s]] == 0).all()


@pytest.mark.parametrize("arm", ["n_softsync(2) workers=6", "mindflayer(2, 0.8)"])
def test_staleness_is_counted_for_every_gradient(arm):
    trainer, state, chunks = trained(arm_config(arm))
    assert not state.clipped.any()
    for s, trace in enumerate(trainer.course.traces):
        ages = trace.update - trace.read_version
        counts = np.bincount(ages, minlength=trainer.max_delay + 1)
        for c in range(len(RATES)):
            np.testing.assert_array_equal(state.staleness_counts[s, c], counts)
        mean = np.concatenate([chunk.staleness for chunk in chunks])[:, s, 0]
        totals = np.bincount(trace.update, ages, minlength=24)
        np.testing.assert_allclose(mean, totals / np.maximum(trace.counts, 1))


def test_reads_are_spread_by_draws_of_the_cluster_s_seed():
    arm = "k_async(1) service=constant(1.0)"  # the same trace under every seed

    def params(spread, seed):
        config = arm_config(arm, cluster_seed=seed, **{"task.noise": 0.0})
        config.cluster.read_spread = spread
        return np.asarray(trained(config)[1].params)

    assert (params(0.0, 1) == params(0.0, 2)).all()
    assert (params(1.0, 1) == params(1.0, 1)).all()
    assert (params(1.0, 1) != params(1.0, 2)).any()
    # replicates draw apart: they differ by more than the signs of their corners
    one, other = np.abs(params(1.0, 1))
    assert (one != other).any()


def test_checkpoints_are_due_where_a_chunk_passes_a_multiple():
    saved = []
    config = arm_config("hardsync()", checkpoint_every=10)
    trainer, _, _ = trained(config, save=lambda state: saved.append(int(state.step)))
    assert trainer.config.chunk == 8 and saved == [16, 24]


def test_an_update_without_gradients_is_no_divergence():
    config = arm_config("mindflayer(1, 0.2)", **{"cluster.evaluations": 24})
    trainer, state, chunks = trained(config)
    assert (trainer.course.counts(0, 24) == 0).any() and trainer.config.chunk == 1
    assert (state.diverged_step == -1).all()
    assert all(np.isfinite(chunk.loss).all() for chunk in chunks)


def test_a_single_cell_of_an_arm_that_diverges_stops_with_the_step_named():
    changes = {"opt.sgd.learning_rate": (1e30,), "seeds": (3,)}
    with pytest.raises(train.DivergenceError, match="not finite at step"):
        trained(arm_config("k_async(1)", **changes))


def test_a_diverged_cell_of_an_arm_is_frozen_and_its_neighbors_go_on():
    config = arm_config("k_async(1)", **{"opt.sgd.learning_rate": (0.1, 1e30)})
    _, state, chunks = trained(config)
    fine, bad = np.asarray(state.diverged_step[0])
    assert fine == -1 and 0 < bad < 24
    loss = np.concatenate([chunk.loss for chunk in chunks])[:, 0]
    assert np.isfinite(loss[:, 0]).all() and np.isnan(loss[bad:, 1]).all()
    config.opt.sgd.learning_rate = (0.1,)
    _, alone, _ = trained(config)
    np.testing.assert_allclose(state.params[:, 0], alone.params[:, 0], rtol=1e-6)


def test_chunks_are_evaluated_with_the_norm_of_the_gradient():
    _, state, chunks = trained(arm_config("k_async(1)"))
    assert len(chunks) == 3
    norms = np.linalg.norm(CURVATURES * np.asarray(state.params), axis=-1)
    losses = 0.5 * (CURVATURES * np.asarray(state.params) ** 2).sum(-1)
    last = chunks[-1].evaluation
    np.testing.assert_allclose(last["gradient_norm"], norms, rtol=1e-5)
    np.testing.assert_allclose(last["train_loss"], losses, rtol=1e-5)


def test_the_cosine_ends_with_the_arm():
    config = arm_config("hardsync() workers=2", **{"opt.decay": "cosine", "steps": 999})
    config.task.batch_size = 6
    config.cluster.examples = 2 * 6 * 10  # ten updates
    trainer, _, _ = trained(config)
    assert trainer.config.steps == 9  # three chunks of three
    cell = grid.Cell(jnp.float32(1.0), 0, 0.0, 0, 0.0)
    assert build.learning_rate(trainer.config, cell)(9) == pytest.approx(0.0, abs=1e-6)
