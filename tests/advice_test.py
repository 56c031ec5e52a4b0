"""What is said before training: each cell's limit, and in what words."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import delayjax as dj
from configs import default
from experiments import advice, build, grid
from experiments.tuning import Series

SPECTRUM = (0.25, 2.0)


def config_of(task="quadratic", **opt):
    config = default.get_config()
    config.advise = True
    config.task.name = task
    config.task.eigenvalues = SPECTRUM
    config.opt.name = ("sgd",)
    config.delay.value = (0, 2, 8)
    config.select_by = "train_loss"
    config.metric = "train_loss"
    for name, options in opt.items():
        config.opt[name].update(options)
    return config


def limits(config):
    build.check(config)
    return advice.limits(config, build.task(config))


def test_each_delay_has_the_limit_of_its_curvature():
    found = limits(config_of(sgd={"momentum": 0.5}))
    assert [limit.delay for limit in found] == [0, 2, 8]
    for limit in found:
        assert limit.series == Series("sgd", "constant", "none", "after", "none", 0.0)
        assert limit.sharpness == 2.0
        expected = dj.stability.Dynamics(limit.delay, momentum=0.5).step_limit() / 2.0
        assert limit.step == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
def test_modulated_steps_have_limits_of_their_own(nesterov):
    config = config_of(sgd={"momentum": 0.9, "nesterov": nesterov})
    config.modulation.law = ("none", "inverse", "polynomial")
    laws = {
        "none": None,
        "inverse": dj.modulation.inverse,
        "polynomial": dj.modulation.polynomial(0.5),
    }
    found = limits(config)
    assert len(found) == 9
    for limit in found:
        expected = dj.stability.Dynamics(
            int(limit.delay),
            momentum=0.9,
            nesterov=nesterov,
            modulation=laws[limit.series.modulation],
        ).step_limit()
        assert limit.step == pytest.approx(expected / 2.0, rel=1e-6)


def test_random_delays_are_stable_in_mean_square():
    config = config_of()
    config.delay.law = ("uniform", "constant")
    config.delay.max_delay = 16
    found = {
        (limit.series.delay_law, limit.delay): limit.step for limit in limits(config)
    }
    even = np.full(17, 1 / 17)
    expected = dj.stability.Dynamics(even).step_limit() / 2.0
    assert found["uniform", 8] == pytest.approx(expected, rel=1e-12)
    assert found["uniform", 8] != pytest.approx(found["constant", 8], rel=0.1)
    assert found["uniform", 0] == found["constant", 0] == pytest.approx(1.0)


@pytest.mark.parametrize("value", [0, 2.5, 6])
@pytest.mark.parametrize("law", ["constant", "uniform", "geometric", "poisson"])
def test_the_law_of_a_delay_is_how_often_it_is_drawn(law, value):
    config = config_of()
    config.delay.law = (law,)
    config.delay.value = (int(value) if law == "constant" else value,)
    config.delay.max_delay = 7  # shorter than what is asked for
    pmf = build.staleness_pmf(config, law, config.delay.value[0])
    assert pmf.shape == (8,)
    assert pmf.sum() == pytest.approx(1.0, abs=1e-12)
    cell = jax.tree.map(
        lambda column: column[0], grid.cells(config, grid.programs(config)[0])
    )
    draws = 20_000
    asked = jax.vmap(build.delay(config, cell, jnp.asarray(1)))(jnp.arange(draws))
    drawn = np.bincount(np.clip(asked, 0, 7), minlength=8) / draws
    # five standard errors of a share
    np.testing.assert_allclose(drawn, pmf, atol=5 * np.sqrt(0.25 / draws))


def test_a_mean_that_overlaps_is_one_update_later():
    config = config_of("digits_mlp")
    config.task.update(width=4, batch_size=32)
    config.mesh.workers = 2
    plain = {limit.delay: limit.step * limit.sharpness for limit in limits(config)}
    config.exchange = "overlapped_mean"
    later = {limit.delay: limit.step * limit.sharpness for limit in limits(config)}
    for tau in (0, 2, 8):
        assert plain[tau] == pytest.approx(dj.stability.Dynamics(tau).step_limit())
        assert later[tau] == pytest.approx(dj.stability.Dynamics(tau + 1).step_limit())


def begun(config):
    """The task, its first parameters and batches, 256 examples."""
    task = build.task(config)
    key = jax.random.fold_in(jax.random.key(config.params_seed), config.seeds[0])
    seed = np.random.SeedSequence([config.data_seed, config.seeds[0]])
    seed = int(seed.generate_state(1)[0])
    size = config.task.batch_size
    count = 256 // size if size and task.examples else 1
    return task, task.init(key), task.batches(seed, 0, count)


@pytest.mark.parametrize("batch_size", [0, 64])
def test_an_unknown_sharpness_is_measured_where_training_begins(batch_size):
    config = config_of("digits_mlp")
    config.task.update(width=4, batch_size=batch_size)
    config.seeds = (3, 0)
    task, params, batches = begun(config)

    def loss(params, batches):
        return jnp.mean(jax.vmap(task.loss, (None, 0))(params, batches))

    expected = dj.stability.sharpness(loss, params, batches)
    (first, *_) = limits(config)
    assert first.sharpness == pytest.approx(expected, rel=1e-4)
    assert first.step == pytest.approx(2 / expected, rel=1e-4)


def test_sentences_name_the_limits_and_count_the_cells_beyond():
    config = config_of()
    config.opt.sgd.learning_rate = (0.1, 0.5, 0.9, 1.5)  # limits 1.0, 0.309, 0.092
    task = build.task(config)
    (sentence,) = advice.sentences(config, task, limits(config))
    assert sentence.startswith("sgd, constant: with a sharpness of 2 (at the optimum)")
    assert (
        "unstable from 1 at 0, 0.309 at 2, 0.0923 at 8 updates of delay on" in sentence
    )
    assert sentence.endswith("8 of the 12 cells lie beyond")


def test_of_many_delays_a_sentence_names_six_with_both_ends():
    config = config_of()
    config.delay.value = tuple(range(33))
    config.modulation.law = ("none", "inverse")
    plain, weighed = advice.sentences(config, build.task(config), limits(config))
    assert plain.count(" at ") == 6
    assert "1 at 0," in plain and "at 32 updates" in plain
    assert weighed.startswith("sgd, constant, inverse: ")


def test_where_training_begins_is_said():
    config = config_of("digits_mlp")
    config.task.width = 4
    (sentence,) = advice.sentences(config, build.task(config), limits(config))
    assert "(where training begins; it changes)" in sentence


def test_a_loss_that_is_not_finite_is_a_warning_and_no_end(caplog):
    config = config_of("digits_mlp")
    config.task.width = 4
    task = build.task(config)

    def infinite(params, batch):
        return task.loss(params, batch) / 0

    lost = dataclasses.replace(task, loss=infinite)
    with caplog.at_level("WARNING", logger="experiments"):
        assert advice.advise(config, lost) == []
    assert "finds no limit: `loss` must have a finite Hessian" in caplog.text


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"opt.name": ("sgd", "lion")}, "config.opt.name 'lion'"),
        ({"opt.name": ("adam", "sgd")}, "config.opt.name 'adam'"),
        ({"compensation.name": ("none", "dc")}, "config.compensation.name 'dc'"),
        (
            {"modulation.placement": ("after", "before")},
            "config.modulation.placement 'before'",
        ),
        ({"delay.drop_above": 4}, "config.delay.drop_above 4"),
        (
            {"delay.law": ("constant", "uniform"), "mesh.workers": 2},
            "config.delay.law 'uniform'",
        ),
    ],
)
def test_what_has_no_limit_is_refused_by_name(changes, named):
    config = config_of()
    config.update_from_flattened_dict(changes)
    with pytest.raises(ValueError, match=f"no limit for {named}: leave config.advise"):
        build.check(config)
    config.advise = False
    build.check(config)
