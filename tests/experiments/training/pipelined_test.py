"""Pipeline stages, trained by the runner."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import pipelines
from experiments import Experiment, pipelined, run, tasks
from experiments.running.programs import programs
from experiments.training.jobs import data_seed
from tests.experiments.tasks.small import TEXT
from tests.support.training_runs import (
    RATES,
    Trained,
    check_resumed,
    into,
)

pytestmark = pytest.mark.runs

STAGES = 3
FACTORS = 5  # embedding, three blocks, head
# the stage of each factor: the embedding is in the first, the head in the last
STAGE_OF = (0, 0, 1, 2, 2)


def product():
    """F = mean of (c_0 c_1 c_2 c_3 c_4 x - 1)^2 / 2: five factors in three stages."""
    parts = pipelines.Parts(
        embed=lambda p, x, key: p * x,
        block=lambda p, x, key: p * x,
        head=lambda p, x, batch: 0.5 * jnp.mean((p * x - 1.0) ** 2),
    )

    def init(key):
        drawn = 1.0 + 0.2 * jax.random.normal(key, (FACTORS,))
        return {"embed": drawn[0], "blocks": drawn[1:4], "head": drawn[4]}

    def loss(params, x):
        return parts.loss(params, x)

    def batches(seed, start, stop):
        rows = [
            np.random.default_rng([seed, t]).normal(1.0, 0.3, 4) for t in range(stop)
        ]
        return np.stack(rows[start:]).astype(np.float32)

    def evaluate(params):
        return {"train_loss": loss(params, jnp.ones(1))}

    return tasks.Task(init, loss, batches, evaluate, parts=parts)


PRODUCT = product()


def factors_of(params):
    return np.array([params["embed"], *params["blocks"], params["head"]], float)


def gradient(c, x):
    error = np.prod(c) * x - 1.0
    return np.array([np.mean(error * x) * np.prod(np.delete(c, i)) for i in range(5)])


def by_hand(kind, begun, seed, rate, updates):
    """The factors after some updates of SGD, in float64."""
    versions, gradients = [factors_of(begun)], []
    x = PRODUCT.batches(data_seed(seed), 0, updates).astype(float)
    for t in range(updates):
        ages = [min(t, STAGES - 1 - stage) for stage in STAGE_OF]
        match kind:
            case "mixed":
                point = [versions[t - age][i] for i, age in enumerate(ages)]
                grad = gradient(np.array(point), x[t])
            case "vertical_sync":
                grad = gradient(versions[t - max(ages)], x[t])
            case "late":
                gradients.append(gradient(versions[t], x[t]))
                grad = np.array([gradients[t - age][i] for i, age in enumerate(ages)])
        versions.append(versions[t] - rate * grad)
    return versions[-1]


def kind_of(name, stages=STAGES):
    def make(parts, learning_rate):
        return getattr(pipelines, name)(
            parts, optax.sgd(learning_rate), pipelines.pipedream(stages)
        )

    return pipelined(make)


@functools.cache
def whole(name):
    """The training of a kind, and the states that it has saved."""
    saved = []
    return Trained(kind_of(name), task=PRODUCT, save=into(saved)), saved


@pytest.mark.parametrize("name", ["mixed", "vertical_sync", "late"])
def test_each_cell_is_a_loop_by_hand_and_its_staleness_is_of_the_first_stage(name):
    result, _ = whole(name)
    for s, c in np.ndindex(2, 2):
        begun, after = (
            jax.tree.map(lambda leaf, s=s, c=c: leaf[s, c], state.model.params)
            for state in (result.begun, result.state)
        )
        expected = by_hand(name, begun, result.program.seeds[s], RATES[c], 24)
        np.testing.assert_allclose(factors_of(after), expected, rtol=1e-5)
        ages = np.concatenate([chunk.staleness for chunk in result.chunks])[:, s, c]
        np.testing.assert_array_equal(ages, [0, 1] + [2] * 22)
        counts = np.asarray(result.state.staleness_counts[s, c])
        np.testing.assert_array_equal(counts[:3], [1, 1, 22])
    assert len({by_hand(n, begun, 3, 0.1, 24)[0] for n in ("mixed", "late")}) == 2


@pytest.mark.parametrize("name", ["mixed", "late"])
def test_a_resumed_run_has_the_same_bits(name):
    run, (first, *_) = whole(name)
    check_resumed(run, first)


def test_cells_of_a_grid_are_cells_apart_and_one_program():
    grid, _ = whole("mixed")
    assert list(grid.program.axes) == ["learning_rate"]
    for c, rate in enumerate(RATES):
        alone = Trained(kind_of("mixed"), task=PRODUCT, grid={"learning_rate": (rate,)})
        jax.tree.map(
            lambda x, y, c=c: np.testing.assert_array_equal(x[:, 0], y[:, c]),
            alone.state.model.params,
            grid.state.model.params,
        )


def test_all_cells_share_the_clock_of_a_history():
    state = whole("mixed")[0].state
    assert state.memory.step.shape == ()
    assert {ring.pushed.shape for ring in state.memory.past if ring} == {()}


def test_the_number_of_stages_is_a_program_of_its_own():
    def make(parts, learning_rate, stages):
        schedule = pipelines.pipedream(stages)
        return pipelines.mixed(parts, optax.sgd(learning_rate), schedule)

    grid = {"learning_rate": RATES, "stages": (1, 3)}
    experiment = Experiment(
        question="?", task=PRODUCT, training=pipelined(make), grid=grid, updates=4
    )
    assert [p.columns for p in programs(experiment)] == [{"stages": 1}, {"stages": 3}]


def test_a_key_reaches_the_layers_and_differs_from_update_to_update():
    def embed(p, x, key):
        return p * x * jax.random.bernoulli(key, 0.5)

    noisy = dataclasses.replace(PRODUCT.parts, embed=embed)
    task = dataclasses.replace(PRODUCT, parts=noisy)
    result = Trained(kind_of("mixed", stages=1), task=task)
    losses = np.concatenate([chunk.loss for chunk in result.chunks])[:, 0, 0]
    dropped = losses == 0.5  # the loss of a model whose output is 0
    assert 4 < dropped.sum() < 20


def test_an_update_that_a_stage_refuses_is_counted():
    def make(parts, learning_rate):
        tx = dj.drop_stale(optax.sgd(learning_rate), 1)
        return pipelines.mixed(parts, tx, pipelines.pipedream(STAGES))

    result = Trained(pipelined(make), task=PRODUCT)
    # the first stage refuses all gradients that are 2 updates late
    np.testing.assert_array_equal(result.state.refused, np.full((2, 2), 22))


@pytest.mark.long
def test_a_language_model_in_two_stages_learns():
    task = tasks.char_lm(**TEXT, depth=2, in_parts=True, evaluated_tokens=512)

    def make(parts, learning_rate):
        adam = optax.adam(learning_rate)
        return pipelines.mixed(parts, adam, pipelines.pipedream(2))

    result = run(
        Experiment(
            question="?",
            task=task,
            training=pipelined(make),
            grid={"learning_rate": (0.01,)},
            updates=40,
            evaluate_every=40,
            seeds=1,
        )
    )
    curve = result.curves["train_loss"].tolist()
    assert curve[-1] < 0.8 * curve[0]
