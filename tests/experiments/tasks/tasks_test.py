"""What every task promises."""

import itertools
import json
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.tasks import Task
from tests.experiments.tasks.small import TASKS
from tests.support.cases import shortened
from tests.support.commands import ROOT

pytestmark = pytest.mark.runs

METRICS = {"train_loss", "test_loss", "train_accuracy", "test_accuracy"}
METRICS |= {"train_confidence", "test_confidence"}


@pytest.fixture(scope="module", params=TASKS)
def task(request, make):
    return make(request.param)


def whole_init(task, key):
    """Parameters and state."""
    return task.init(key) if task.has_state else (task.init(key), ())


def loss_of(task, params, batch, state=(), key=None):
    """The loss and the state after it."""
    if task.has_state:
        return task.loss(params, batch, state=state, key=key)
    return task.loss(params, batch), ()


def metrics_of(task, params, state=()):
    return task.evaluate(params, state) if task.has_state else task.evaluate(params)


def first(batch):
    return jax.tree.map(lambda leaf: leaf[0], batch)


def trained(task, *, steps, learning_rate=0.02):
    """Parameters and state after some steps of Adam in one compiled scan."""
    tx = optax.adam(learning_rate)

    def step(carry, given):
        batch, key = given
        params, model_state, state = carry
        (_, model_state), grads = jax.value_and_grad(
            lambda params: loss_of(task, params, batch, model_state, key), has_aux=True
        )(params)
        updates, state = tx.update(grads, state)
        return (optax.apply_updates(params, updates), model_state, state), None

    @jax.jit
    def run(params, state, batch):
        keys = jax.random.split(jax.random.key(1), steps)
        carry = params, state, tx.init(params)
        return jax.lax.scan(step, carry, (batch, keys))[0][:2]

    return run(*whole_init(task, jax.random.key(0)), task.batches(0, 0, steps))


def test_a_task_has_the_promised_shapes_and_types(task):
    assert isinstance(task, Task)
    model = jax.eval_shape(lambda: whole_init(task, jax.random.key(0)))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(model))
    batch = task.batches(0, 3, 8)
    for leaf in jax.tree.leaves(batch):
        assert isinstance(leaf, np.ndarray)
        assert leaf.shape[0] == 5 and task.examples in (None, leaf.shape[1])
        assert leaf.dtype in (np.float32, np.int32, np.uint8)
    loss, state = jax.eval_shape(
        lambda params, state: loss_of(
            task, params, first(batch), state, jax.random.key(0)
        ),
        *model,
    )
    assert (loss.shape, loss.dtype) == ((), jnp.float32)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, model[1])
    metrics = jax.eval_shape(lambda *model: metrics_of(task, *model), *model)
    assert "train_loss" in metrics
    assert set(metrics) <= METRICS
    assert all((m.shape, m.dtype) == ((), jnp.float32) for m in metrics.values())
    assert json.loads(json.dumps(dict(task.facts))) == dict(task.facts)


def test_batches_are_a_pure_function_of_seed_steps_and_part(task):
    whole = task.batches(1, 2, 25)  # past the end of an epoch of `tfds`
    chex.assert_trees_all_equal(whole, task.batches(1, 2, 25))
    for cut in (3, 4, 17):
        parts = task.batches(1, 2, cut), task.batches(1, cut, 25)
        joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        chex.assert_trees_all_equal(whole, joined)
    if task.examples is None:
        return
    for part in (slice(0, 3), slice(3, 8), np.array([6, 1])):
        expected = jax.tree.map(lambda leaf, part=part: leaf[:, part], whole)
        chex.assert_trees_all_equal(task.batches(1, 2, 25, part), expected)


def test_steps_and_seeds_have_batches_of_their_own(task):
    drawn = [jax.tree.leaves(task.batches(seed, 0, 3))[0] for seed in (1, 2, 3)]
    for one, other in itertools.combinations(np.concatenate(drawn), 2):
        assert not np.array_equal(one, other)


# `init`, `loss` and `evaluate` of the others are the same code with other networks
SAME = ("digits_cnn", "tokens", "tfds", "gaussian_mixtures")
KINDS = [name for name in TASKS if name not in SAME]


@pytest.mark.parametrize("task", KINDS, indirect=True)
def test_parameters_depend_on_the_key_alone(task):
    seeds = [1, 2, 3, 4, 1]
    models = [jax.tree.leaves(whole_init(task, jax.random.key(s))[0]) for s in seeds]
    rows = np.stack([np.concatenate([x.ravel() for x in leaves]) for leaves in models])
    np.testing.assert_array_equal(rows[0], rows[4])
    assert len(np.unique(rows, axis=0)) > 1


@pytest.mark.parametrize("task", KINDS, indirect=True)
def test_the_functions_map_over_cells(task):
    keys = jax.random.split(jax.random.key(0), 3)
    models = jax.eval_shape(jax.vmap(lambda key: whole_init(task, key)), keys)
    batch = first(task.batches(0, 0, 1))

    def gradients(params, state, key):
        return jax.grad(
            lambda params: loss_of(task, params, batch, state, key), has_aux=True
        )(params)

    chex.assert_trees_all_equal_shapes_and_dtypes(
        jax.eval_shape(jax.vmap(gradients), *models, keys), models
    )
    metrics = jax.eval_shape(jax.vmap(lambda *model: metrics_of(task, *model)), *models)
    assert all(metric.shape == (3,) for metric in metrics.values())


LEARNED = [name for name in TASKS if name != "tokens"]  # the network of `char_lm`


@pytest.mark.parametrize(
    "task", shortened(LEARNED, *(n for n in LEARNED if n != "tfds")), indirect=True
)
def test_training_lowers_the_evaluated_loss(task):
    before = metrics_of(task, *whole_init(task, jax.random.key(0)))
    after = metrics_of(task, *trained(task, steps=60))
    assert after["train_loss"] < 0.9 * before["train_loss"]
    if "train_accuracy" in after:
        assert after["train_accuracy"] > before["train_accuracy"]


def test_heavy_packages_wait_until_a_task_or_a_figure_needs_them():
    program = (
        "import sys\n"
        "import configs.default, experiments.main, experiments.report\n"
        "heavy = {'sklearn', 'tensorflow_datasets', 'grain', 'tensorflow', 'PIL'}\n"
        "print(sorted({'matplotlib', *heavy} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT
    )
    assert run.stdout == "[]\n", run.stderr
