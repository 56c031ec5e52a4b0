"""Arms whose workers have models of their own, trained as the runner trains them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import delayjax as dj
from experiments import build, execution, grid, train
from experiments.build.methods import METHODS
from tests.update_test import CURVATURES, arm_config, trained

ARMS = {
    "local_sgd": "local_sgd(3)",
    "dasgd": "dasgd(4, 2)",
    "async_easgd": "async_easgd(2)",
    "wagma": "wagma(period=3)",
}


def regression(arm):
    """One step size of a logistic regression, two seeds."""
    small = {
        "task.name": "breast_cancer",
        "task.batch_size": 4,
        "opt.sgd.learning_rate": (0.1,),
        "opt.sgd.momentum": 0.0,
    }
    return arm_config(arm, **small)


def curve(config):
    """(seconds, training loss) by evaluation, of the first seed and cell."""
    trainer, _, chunks = trained(config)
    step = trainer.course.chunk
    seconds = [
        float(trainer.course.seconds((i + 1) * step)[0]) for i in range(len(chunks))
    ]
    return seconds, [float(chunk.evaluation["train_loss"][0, 0]) for chunk in chunks]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_lowers_the_loss(name):
    quiet = {"opt.sgd.momentum": 0.0, "opt.sgd.learning_rate": (0.03,), "seeds": (3,)}
    trainer, state, _ = trained(
        arm_config(ARMS.get(name, f"{name}()"), steps=60, **quiet)
    )
    began, ends = (trainer.evaluate(s)["train_loss"] for s in (trainer.init(), state))
    assert (ends < 0.5 * began).all()


def test_the_mean_gradient_at_a_barrier_is_the_same_by_both_names():
    """An all-reduce of P models and a server that waits for P gradients."""
    ours, theirs = (
        curve(arm_config(arm, **{"cluster.service": "exponential(1.0)"}))
        for arm in ("allreduce_sgd()", "hardsync()")
    )
    np.testing.assert_allclose(ours[0], theirs[0])
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-4)


def test_models_averaged_at_each_step_are_gradients_averaged():
    """With SGD the mean of x - eta g^i is x - eta mean g^i.

    Not on a quadratic: there the mean of models that never meet goes the same way.
    """
    arms = ("local_sgd(1)", "allreduce_sgd()")
    ours, theirs = (curve(regression(arm)) for arm in arms)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_pushing_every_gradient_is_asynchronous_sgd():
    """DOWNPOUR of period 1 and k_async(1): the same loss after the same visits."""
    quiet = {"task.noise": 0.0, "cluster.service": "exponential(1.0)", "steps": 40}
    one = {"opt.sgd.momentum": 0.0, "opt.sgd.learning_rate": (0.1,), "seeds": (3,)}
    seconds, losses = curve(
        arm_config("async_sgd()", **quiet, **one, **{"cluster.evaluations": 40})
    )
    longer = quiet | {"steps": 160, "cluster.evaluations": 160}
    visits, expected = curve(arm_config("k_async(1)", **longer, **one))
    at = np.searchsorted(visits, np.asarray(seconds) * (1 + 1e-12), side="right") - 1
    np.testing.assert_allclose(losses, np.asarray(expected)[at], rtol=1e-5)


def test_elastic_averaging_along_a_cluster_is_an_event_loop():
    """Async EASGD by hand, one visit after the other, in float64."""
    rate, moving, momentum, number = 0.1, 0.2, 0.5, 24
    arm = f"async_measgd(moving_rate={moving}, momentum={momentum})"
    changes = {
        "task.noise": 0.0,
        "opt.sgd.momentum": 0.0,
        "opt.sgd.learning_rate": (rate,),
        "cluster.evaluations": number,
        "cluster.service": "exponential(1.0)",
        "seeds": (3,),
    }
    config = arm_config(arm, **changes)
    seconds, losses = curve(config)
    task = build.task(config)
    key = jax.random.fold_in(jax.random.key(config.params_seed), 3)
    start = np.asarray(jax.tree.leaves(task.init(key))[0], np.float64)
    mixed = np.random.SeedSequence([config.cluster_seed, 3]).generate_state(1)
    trace = dj.cluster.simulate(
        dj.cluster.Cluster(4, dj.cluster.exponential(1.0)),
        dj.cluster.protocols.k_async(1),
        200,
        seed=int(mixed[0]),
    )
    center, models, speeds = start, np.tile(start, (4, 1)), np.zeros((4, len(start)))

    def local_step(w, pulled):
        speeds[w] = momentum * speeds[w] - rate * CURVATURES * models[w]
        models[w] += speeds[w] - pulled

    after = [(0.0, center)]
    for time, w in zip(trace.seconds, trace.worker, strict=True):
        pulled = moving * (models[w] - center)
        center = center + pulled
        local_step(w, pulled)
        after.append((time, center))
    times = np.asarray([time for time, _ in after])
    at = np.searchsorted(times, np.asarray(seconds) * (1 + 1e-12), side="right") - 1
    expected = [0.5 * CURVATURES @ after[i][1] ** 2 for i in at]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


@pytest.mark.parametrize("arm", ["wagma(2, period=3)", "ea_wild(2)", "eager_sgd()"])
def test_a_resumed_run_has_the_same_bits(arm):
    saved = []

    def save(state):
        saved.append(jax.tree.map(jnp.copy, state))

    trainer, state, _ = trained(arm_config(arm, checkpoint_every=8), save=save)
    assert int(execution.held(saved[0]).step) == 8 < trainer.config.steps
    again = train.run(
        *(trainer, saved[0]),
        save=lambda state: None,
        report=lambda *chunk: None,
        profile_dir="",
    )
    jax.tree.map(np.testing.assert_array_equal, again, state)


def test_the_model_of_replicas_is_their_mean_and_of_a_center_the_center():
    for arm, mean in (("local_sgd(7)", True), ("sync_easgd()", False)):
        trainer, state, _ = trained(arm_config(arm))
        held = execution.held(state)
        (own,) = jax.tree.leaves(held.params)  # [seeds, rates, workers, dimensions]
        assert own.shape == (2, 2, 4, 2)
        model = own.mean(axis=2)
        if not mean:
            (model,) = jax.tree.leaves(held.opt_state.state.memory.center)
        loss = 0.5 * (CURVATURES * np.square(model)).sum(axis=-1)
        np.testing.assert_allclose(
            trainer.evaluate(state)["train_loss"], loss, rtol=1e-5
        )


def test_blending_nothing_of_one_s_own_is_overwriting():
    arms = ("dasgd(4, 2, 'blended', 0.0)", "dasgd(4, 2, 'overwriting')", "dasgd(4, 2)")
    blended, overwritten, corrected = (curve(arm_config(arm)) for arm in arms)
    np.testing.assert_allclose(blended, overwritten, rtol=1e-6)
    assert not np.allclose(corrected, overwritten, rtol=1e-3)


def test_late_models_count_as_stale():
    arm = "wagma(2, period=4)"
    config = arm_config(arm, **{"cluster.service": "exponential(1.0)", "steps": 48})
    trainer, state, _ = trained(config)
    counts = trainer.counters(state).staleness_counts[0, 0]
    behind = trainer.course.timetables[0].behind
    np.testing.assert_array_equal(
        counts, np.bincount(behind.ravel(), minlength=len(counts))
    )
    assert counts[1:].sum() > 0 and counts.sum() == behind.size


@pytest.mark.parametrize(
    ("arm", "changes", "message"),
    [
        ("local_sgd(0)", {}, r"'local_sgd\(0\)': `period` must be at least 1, got 0"),
        ("local_sgd()", {}, r"'local_sgd\(\)': .*missing.*'period'"),
        ("wagma(3)", {}, r"'wagma\(3\)': `group_size` must be a power of two, got 3"),
        ("wagma() workers=6", {}, r"workers=6': .*power of two.* 6"),
        ("wagma(8)", {}, r"'wagma\(8\)': `group_size` must be at most.*4, got 8"),
        ("sgp(5)", {}, r"'sgp\(5\)': `peers` must be at most 2"),
        (
            "eager_sgd('never')",
            {},
            "`trigger` must be 'solo' or 'majority', got 'never'",
        ),
        ("dasgd(4, 2, 'mixed')", {}, "`merge` must be among corrected, over"),
        ("gossip() speeds=linear", {}, "must be equally fast"),
        (
            "d_psgd()",
            {"modulation.law": ("inverse",)},
            r"modulation.law must be \('none'",
        ),
        (
            "d_psgd()",
            {"compensation.name": ("dc",)},
            r"compensation.name must be \('non",
        ),
        ("d_psgd()", {"cluster.read_spread": 0.5}, "read_spread does nothing.*ea_wild"),
        (
            "d_psgd()",
            {"figures": ("over_option",), "over.option": "period"},
            "'period', o",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_any_work(arm, changes, message):
    config = arm_config(arm, **changes)
    with pytest.raises(ValueError, match=message):
        build.check(config)
        (program,) = grid.programs(config)
        own = build.for_arm(config, program.arm)
        course = build.course(own, program.arm)
        own.steps, own.chunk = course.steps, course.chunk
        train.trainer(own, program, build.task(own), course)


def test_late_models_in_a_sum_are_as_old_as_the_cluster_says():
    """WAGMA-SGD of pairs by hand, along its timetable, in float64."""
    rate, period, steps = 0.1, 5, 40
    quiet = {"task.noise": 0.0, "opt.sgd.momentum": 0.0, "seeds": (3,)}
    service = {"cluster.service": "exponential(1.0)", "opt.sgd.learning_rate": (rate,)}
    config = arm_config(f"wagma(2, period={period})", steps=steps, **quiet, **service)
    trainer, state, _ = trained(config)
    behind = trainer.course.timetables[0].behind
    assert behind.max() > 1
    (start,) = jax.tree.leaves(execution.held(trainer.init()).params)
    models = np.asarray(start[0, 0], np.float64)  # [workers, dimensions]
    made = [models]
    for t in range(trainer.course.steps):
        own = models - rate * CURVATURES * models
        made.append(own)
        sent = np.stack([made[t + 1 - behind[t, w]][w] for w in range(4)])
        partner = np.arange(4) ^ (1 << t % 2)
        late = behind[t][:, None] > 0
        total = sent + sent[partner]
        models = np.where(late, (total + own) / 3, total / 2)
        if (t + 1) % period == 0:
            models = np.tile(own.mean(axis=0), (4, 1))
    (found,) = jax.tree.leaves(execution.held(state).params)
    np.testing.assert_allclose(found[0, 0], models, rtol=2e-4)
