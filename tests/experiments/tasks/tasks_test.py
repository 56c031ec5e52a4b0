import collections
import dataclasses
import functools
import hashlib
import importlib
import itertools
import json
import math
import pydoc_data.topics
import subprocess
import sys

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from experiments import tasks
from experiments.tasks import (
    Task,
    batches,
    classification,
    crops,
    language,
    models,
    networks,
)
from tests.support.cases import shortened

OWN_TASK = '''
"""How far does diabetes progress within a year? 442 patients, 10 measurements."""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn import datasets

from experiments.tasks.task import Task


def make(*, batch_size, width):
    x, y = datasets.load_diabetes(return_X_y=True)
    x = (x / x.std(0)).astype(np.float32)
    y = ((y - y.mean()) / y.std()).astype(np.float32)
    train = {"x": x[:350], "y": y[:350]}
    test = {"x": x[350:], "y": y[350:]}

    def init(key):
        w = 0.3 * jax.random.normal(key, (10, width))
        return {"w": w, "v": jnp.zeros(width)}

    def loss(params, batch):
        predicted = jnp.tanh(batch["x"] @ params["w"]) @ params["v"]
        return jnp.mean((predicted - batch["y"]) ** 2)

    def batches(seed, start, stop):  # a function of its arguments alone: runs resume
        def rows(step):
            generator = np.random.default_rng([seed, step])
            return generator.integers(350, size=batch_size)

        chosen = np.stack([rows(step) for step in range(start, stop)])
        return {name: array[chosen] for name, array in train.items()}

    def evaluate(params):
        return {"train_loss": loss(params, train), "test_loss": loss(params, test)}

    return Task(init, loss, batches, evaluate)
'''

METRICS = {"train_loss", "test_loss", "train_accuracy", "test_accuracy"}
METRICS |= {"train_confidence", "test_confidence"}
STATEFUL = ("linen", "nnx")


TEXT = dict(batch_size=8, width=16, heads=2, context=16)


def module_of(name):
    """The module of a task, whose name the task's function has as well."""
    return importlib.import_module(f"experiments.tasks.{name}")


def write_shard(path, numbers):
    np.asarray(numbers).astype("<u2").tofile(path)
    return path


def tiny_image(number):
    image = np.full((8, 8, 1), 60 * (number % 4), np.uint8)
    image[0, 0] = number
    return image


def prepare_images(
    data_dir, *, splits, features=None, name="tiny_images", image_of=tiny_image
):
    """Writes a data set in TFDS's own format; a pixel of each image is its number."""
    import tensorflow_datasets as tfds

    features = features or {
        "image": tfds.features.Tensor(shape=(8, 8, 1), dtype=np.uint8),
        "label": tfds.features.ClassLabel(num_classes=4),
    }

    def info(self):
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features)
        )

    def examples(self, numbers):
        for number in numbers:
            row = {"image": image_of(number), "label": number % 4, "number": number}
            yield number, {key: row[key] for key in features}

    def generators(self, downloads):
        return {split: examples(self, numbers) for split, numbers in splits.items()}

    builder = type(
        name.title().replace("_", ""),
        (tfds.core.GeneratorBasedBuilder,),
        {
            "VERSION": tfds.core.Version("1.0.0"),
            "__module__": __name__,
            "_info": info,
            "_split_generators": generators,
            "_generate_examples": examples,
        },
        skip_registration=True,  # so that it is found on disk, not by its class
    )
    made = builder(data_dir=str(data_dir), file_format="array_record")
    made.download_and_prepare()
    return made


class Normed(nn.Module):
    """A Linen model with BatchNorm, whose statistics are state, and dropout."""

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Dense(16)(x.reshape(x.shape[0], -1))
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        x = nn.Dropout(0.2, deterministic=not train)(x)
        return nn.Dense(10)(x)


class NormedNNX(nnx.Module):
    """The same as an nnx module."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.out = nnx.Linear(16, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.hidden(x.reshape(x.shape[0], -1))))
        return self.out(self.dropout(x))


def own_digits(network, batch_size=8):
    """Digits with a network, and a metric, of one's own."""
    from sklearn import datasets

    data = datasets.load_digits()
    images = (data.images[..., None] / 16).astype(np.float32)
    examples = {"image": images, "label": data.target.astype(np.int32)}
    train = {name: array[:1400] for name, array in examples.items()}
    test = {name: array[1400:] for name, array in examples.items()}
    return tasks.classify(
        network,
        batches.shuffled(train, batch_size),
        train,
        test,
        examples=batch_size,
        metrics={"confidence": lambda logits, label: jax.nn.softmax(logits).max()},
    )


@pytest.fixture(scope="module")
def image_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tfds")
    prepare_images(directory, splits={"train": range(60), "test": range(60, 80)})
    return str(directory)


@pytest.fixture(scope="module")
def make(tmp_path_factory, image_dir):
    """name -> the task, small, its functions compiled once for all tests."""
    shards = tmp_path_factory.mktemp("shards")
    for shard in range(2):
        write_shard(shards / f"{shard}.bin", np.arange(3000) % (11 + shard))
    own = tmp_path_factory.mktemp("own")
    (own / "my_task.py").write_text(OWN_TASK)

    def plain(name, options):
        match name:
            case "digits_mlp":
                return tasks.digits_mlp(**dict(batch_size=8, width=16) | options)
            case "digits_cnn":
                return tasks.digits_cnn(**dict(batch_size=8, width=8) | options)
            case "breast_cancer":
                return tasks.breast_cancer(**dict(batch_size=8) | options)
            case "quadratic":
                return tasks.quadratic(**dict(noise=0.1) | options)
            case "char_lm":
                return tasks.char_lm(**TEXT | options)
            case "tokens":
                return tasks.tokens(f"{shards}/*.bin", vocab=16, **TEXT | options)
            case "tfds":
                options = dict(batch_size=8, data_dir=image_dir) | options
                return tasks.images("tiny_images", **options)
            case "linen":
                return own_digits(tasks.linen(Normed()), **options)
            case "nnx":
                return own_digits(tasks.nnx(NormedNNX), **options)
            case "own":
                with pytest.MonkeyPatch.context() as patch:
                    patch.syspath_prepend(own)
                    own_task = importlib.import_module("my_task")
                return own_task.make(batch_size=8, width=16)

    @functools.cache
    def make(name, **options):
        task = plain(name, options)
        return dataclasses.replace(
            task,
            init=jax.jit(task.init),
            loss=jax.jit(task.loss),
            evaluate=jax.jit(task.evaluate),
        )

    return make


TASKS = [
    "digits_mlp",
    "digits_cnn",
    "breast_cancer",
    "quadratic",
    "char_lm",
    "tokens",
    "tfds",
    "own",
    *STATEFUL,
]


@pytest.fixture(scope="module", params=TASKS)
def task(request, make):
    return make(request.param)


def whole_init(task, key):
    """Parameters and state."""
    return task.init(key) if task.has_state else (task.init(key), ())


def params_of(task, key):
    return whole_init(task, key)[0]


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


# what every task promises


def test_a_task_has_the_promised_shapes_and_types(task):
    assert isinstance(task, Task)
    model = jax.eval_shape(lambda: whole_init(task, jax.random.key(0)))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(model))
    batch = task.batches(0, 3, 8)
    for leaf in jax.tree.leaves(batch):
        assert isinstance(leaf, np.ndarray)
        assert leaf.shape[0] == 5
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


def test_batches_are_a_pure_function_of_seed_and_steps(task):
    whole = task.batches(1, 0, 6)
    chex.assert_trees_all_equal(whole, task.batches(1, 0, 6))
    for cut in (1, 2, 5):
        parts = task.batches(1, 0, cut), task.batches(1, cut, 6)
        joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        chex.assert_trees_all_equal(whole, joined)


@pytest.mark.parametrize("part", [slice(0, 3), slice(3, 8), np.array([6, 1])])
@pytest.mark.parametrize(
    "name", ["digits_mlp", "digits_cnn", "breast_cancer", "char_lm", "tokens", "tfds"]
)
@pytest.mark.parametrize("seed", shortened([1, 2], 1))
def test_a_part_of_a_batch_is_what_the_whole_has_there(make, name, part, seed):
    task = make(name)
    whole = task.batches(seed, 2, 25)  # past the end of an epoch of `tfds`
    assert {len(leaf[0]) for leaf in jax.tree.leaves(whole)} == {task.examples}
    expected = jax.tree.map(lambda leaf: leaf[:, part], whole)
    chex.assert_trees_all_equal(task.batches(seed, 2, 25, part), expected)


@pytest.mark.parametrize("name", ["digits_mlp", "breast_cancer"])
def test_a_part_of_the_full_batch_is_cut_from_it_too(make, name):
    task, part = make(name, batch_size=0), np.array([5, 400, 7])
    whole = task.batches(1, 0, 2)
    assert task.examples == len(jax.tree.leaves(whole)[0][0])
    expected = jax.tree.map(lambda leaf: leaf[:, part], whole)
    chex.assert_trees_all_equal(task.batches(1, 0, 2, part), expected)


@pytest.mark.parametrize("name", ["char_lm", "tokens"])
def test_a_batch_of_windows_predicts_context_tokens_each(make, name):
    task = make(name, context=12)
    assert task.tokens == task.batches(0, 0, 1)[0, :, 1:].size == 8 * 12


def test_steps_and_seeds_have_batches_of_their_own(task):
    leaves = [
        jax.tree.leaves(first(task.batches(seed, step, step + 1)))[0]
        for seed in (1, 2, 3)
        for step in (0, 1, 2)
    ]
    for one, other in itertools.combinations(leaves, 2):
        assert not np.array_equal(one, other)


def test_parameters_depend_on_the_key_alone(task):
    seeds = [1, 2, 3, 4, 1]
    params = [jax.tree.leaves(params_of(task, jax.random.key(s))) for s in seeds]
    rows = np.stack([np.concatenate([x.ravel() for x in leaves]) for leaves in params])
    np.testing.assert_array_equal(rows[0], rows[4])
    assert len(np.unique(rows, axis=0)) > 1


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


@pytest.mark.parametrize(
    "task", shortened(TASKS, *(name for name in TASKS if name != "tfds")), indirect=True
)
def test_training_lowers_the_evaluated_loss(task):
    before = metrics_of(task, *whole_init(task, jax.random.key(0)))
    after = metrics_of(task, *trained(task, steps=60))
    assert after["train_loss"] < 0.9 * before["train_loss"]
    if "train_accuracy" in after:
        assert after["train_accuracy"] > before["train_accuracy"]


# examples in memory


@pytest.mark.parametrize("batch_size", [1, 4, 7, 10])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_example_is_seen_once_an_epoch(seed, batch_size):
    draw = batches.shuffled({"x": np.arange(10)}, batch_size)
    seen = draw(seed, 0, 10)["x"]  # ten batches are `batch_size` epochs
    assert seen.shape == (10, batch_size)
    epochs = seen.reshape(batch_size, 10)
    np.testing.assert_array_equal(np.sort(epochs), [range(10)] * batch_size)
    for one, other in itertools.combinations(epochs, 2):
        assert not np.array_equal(one, other)


def test_shuffled_keeps_the_arrays_of_an_example_together():
    draw = batches.shuffled({"x": np.arange(9), "square": np.arange(9) ** 2}, 4)
    seen = draw(0, 0, 7)
    np.testing.assert_array_equal(seen["square"], seen["x"] ** 2)


def test_the_full_batch_is_all_examples_in_place_at_every_step():
    x = np.arange(6.0)
    seen = batches.shuffled({"x": x}, 0)(0, 3, 7)["x"]
    np.testing.assert_array_equal(seen, np.tile(x, (4, 1)))
    assert np.shares_memory(seen, x)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_a_split_puts_every_example_on_one_side(seed, fraction):
    train, test = batches.split(200, test_fraction=fraction, seed=seed)
    assert len(test) == fraction * 200
    assert sorted([*train, *test]) == list(range(200))
    other = batches.split(200, test_fraction=fraction, seed=seed + 1)
    assert set(test) != set(other[1])


# digits


@pytest.mark.parametrize("name", ["digits_mlp", "digits_cnn", "breast_cancer"])
def test_the_evaluated_training_loss_is_the_loss_of_the_full_batch(make, name):
    task = make(name, batch_size=0)
    params = task.init(jax.random.key(0))
    full = task.loss(params, first(task.batches(0, 0, 1)))
    np.testing.assert_allclose(task.evaluate(params)["train_loss"], full, rtol=1e-5)


@pytest.mark.parametrize("name", ["digits_mlp", "digits_cnn"])
def test_digits_training_and_held_out_images_are_all_of_the_data(make, name):
    from sklearn import datasets

    facts = make(name, batch_size=0).facts
    assert facts["train_examples"] + facts["test_examples"] == 1797
    seen = first(make(name, batch_size=0).batches(0, 0, 1))
    train, _ = batches.split(1797, test_fraction=0.25, seed=0)
    data = datasets.load_digits()
    np.testing.assert_array_equal(16 * seen["image"][..., 0], data.images[train])
    np.testing.assert_array_equal(seen["label"], data.target[train])


def test_digits_are_learned_and_told_apart_in_held_out_images(make):
    from sklearn import datasets

    task = make("digits_mlp", batch_size=32)
    params = jax.device_get(trained(task, steps=150)[0])
    metrics = task.evaluate(params)
    assert metrics["test_accuracy"] > 0.9
    # the same network, written out
    data = datasets.load_digits()
    _, test = batches.split(1797, test_fraction=0.25, seed=0)
    x, hidden, out = data.data[test] / 16.0, params["Dense_0"], params["Dense_1"]
    logits = np.maximum(x @ hidden["kernel"] + hidden["bias"][None], 0.0)
    logits = logits @ out["kernel"] + out["bias"][None]
    hits = logits.argmax(1) == data.target[test]
    assert metrics["test_accuracy"] == pytest.approx(hits.mean())
    log_sums = np.log(np.exp(logits).sum(1))
    losses = log_sums - logits[np.arange(len(test)), data.target[test]]
    assert metrics["test_loss"] == pytest.approx(losses.mean(), rel=1e-4)


# networks with state and dropout


@pytest.mark.parametrize("name", STATEFUL)
def test_batch_norm_s_statistics_are_those_of_the_batches(make, name):
    task = make(name, batch_size=64)
    params, state = task.init(jax.random.key(0))
    batch = first(task.batches(0, 0, 1))
    for _ in range(200):  # at fixed parameters: the mean over all of the same batch
        _, state = task.loss(params, batch, state=state, key=jax.random.key(1))
    hidden = params["Dense_0"] if name == "linen" else params["hidden"]
    inner = batch["image"].reshape(64, -1) @ hidden["kernel"] + hidden["bias"][None]
    found = jax.tree.leaves(state)
    expected = [inner.mean(0), inner.var(0)]
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", STATEFUL)
def test_dropout_is_drawn_from_the_key_in_training_alone(make, name):
    task = make(name)
    params, state = task.init(jax.random.key(0))
    batch = first(task.batches(0, 0, 1))
    one, again, other = (
        task.loss(params, batch, state=state, key=jax.random.key(key))[0]
        for key in (1, 1, 2)
    )
    assert one == again
    assert one != other
    chex.assert_trees_all_equal(
        task.evaluate(params, state), task.evaluate(params, state)
    )


def test_a_linen_model_and_the_same_in_nnx_agree(make):
    linen, other = make("linen"), make("nnx")
    params, state = other.init(jax.random.key(0))
    names = {"hidden": "Dense_0", "norm": "BatchNorm_0", "out": "Dense_1"}
    there = {names[name]: value for name, value in params.items()}
    statistics = {"batch_stats": {"BatchNorm_0": state["norm"]}}
    for name, value in other.evaluate(params, state).items():
        np.testing.assert_allclose(
            linen.evaluate(there, statistics)[name], value, rtol=1e-5
        )


@pytest.mark.parametrize("name", STATEFUL)
def test_a_metric_of_one_s_own_is_a_mean_over_examples(make, name):
    task = make(name)
    params, state = jax.tree.map(jnp.zeros_like, task.init(jax.random.key(0)))
    metrics = task.evaluate(params, state)  # all classes are as probable
    assert metrics["test_confidence"] == pytest.approx(0.1)
    assert metrics["train_loss"] == pytest.approx(math.log(10), rel=1e-5)


def test_a_model_without_state_or_dropout_has_a_plain_task(make):
    network = tasks.nnx(lambda rngs: nnx.Linear(64, 10, rngs=rngs))
    assert not network.trains_apart
    assert not make("digits_mlp").has_state


# breast cancer


def newton(loss, size):
    """The optimum by undamped Newton steps, which suffice for this penalty."""
    w = jnp.zeros(size)
    step = jax.jit(
        lambda w: w - jnp.linalg.solve(jax.hessian(loss)(w), jax.grad(loss)(w))
    )
    for _ in range(12):
        w = step(w)
    return w


def test_breast_cancer_facts_are_those_of_the_training_objective(make):
    task = make("breast_cancer", batch_size=0, l2=0.01)
    batch = first(task.batches(0, 0, 1))
    flat, unravel = jax.flatten_util.ravel_pytree(task.init(jax.random.key(0)))

    def loss(w):
        return task.loss(unravel(w), batch)

    optimum = newton(loss, flat.size)
    np.testing.assert_allclose(jax.grad(loss)(optimum), 0.0, atol=1e-6)
    # float32 here, float64 there
    np.testing.assert_allclose(loss(optimum), task.facts["optimum_loss"], rtol=1e-5)
    largest = jnp.linalg.eigvalsh(jax.hessian(loss)(optimum))[-1]
    np.testing.assert_allclose(largest, task.facts["sharpness"], rtol=1e-4)
    for seed in (1, 2, 3):
        elsewhere = optimum + 0.1 * jax.random.normal(jax.random.key(seed), flat.shape)
        assert loss(elsewhere) > task.facts["optimum_loss"]


def test_breast_cancer_features_are_standardised_over_the_training_examples(make):
    features = first(make("breast_cancer", batch_size=0).batches(0, 0, 1))["features"]
    np.testing.assert_allclose(features.mean(0), 0.0, atol=1e-5)
    np.testing.assert_allclose(features.std(0), 1.0, rtol=1e-5)


def test_the_penalty_is_half_l2_times_the_squared_weights_and_spares_the_bias(make):
    params = {"w": jnp.arange(30.0) / 30, "b": jnp.asarray(3.0)}
    weak, strong = (make("breast_cancer", l2=l2) for l2 in (0.1, 0.3))
    batch = first(weak.batches(0, 0, 1))
    extra = strong.loss(params, batch) - weak.loss(params, batch)
    np.testing.assert_allclose(extra, 0.1 * jnp.sum(params["w"] ** 2), rtol=1e-5)


def test_held_out_tumours_are_scored_by_the_same_rule(make):
    from sklearn import datasets

    task = make("breast_cancer", l2=0.2)
    params = {"w": np.linspace(-0.3, 0.1, 30, dtype=np.float32), "b": np.float32(0.2)}
    data = datasets.load_breast_cancer()
    train, test = batches.split(569, test_fraction=0.25, seed=0)
    x = (data.data - data.data[train].mean(0)) / data.data[train].std(0)
    benign = 1.0 / (1.0 + np.exp(-(x[test] @ params["w"] + params["b"])))
    right = np.where(data.target[test] == 1, benign, 1.0 - benign)
    penalty = 0.1 * np.sum(params["w"] ** 2)
    metrics = task.evaluate(params)
    expected = -np.log(right).mean() + penalty
    assert metrics["test_loss"] == pytest.approx(expected, rel=1e-4)
    assert metrics["test_accuracy"] == pytest.approx((right > 0.5).mean())


# quadratic


def test_the_quadratic_has_the_chosen_spectrum(make):
    spectrum = (0.5, 3.0, 0.0, 1.0)
    task = make("quadratic", eigenvalues=spectrum)
    x = task.init(jax.random.key(0))
    hessian = jax.hessian(lambda x: task.evaluate(x)["train_loss"])(x)
    np.testing.assert_allclose(hessian, np.diag(spectrum), atol=1e-6)
    assert task.facts == {"sharpness": max(spectrum), "optimum_loss": 0.0}
    np.testing.assert_allclose(jnp.abs(x), 1.0)
    np.testing.assert_allclose(task.evaluate(x)["train_loss"], sum(spectrum) / 2)


def test_the_gradient_noise_has_the_chosen_size():
    task = tasks.quadratic((1.0, 2.0), noise=0.3)
    x = jnp.array([1.0, -1.0])
    z = task.batches(0, 0, 4000)
    gradients = jax.vmap(jax.grad(task.loss), (None, 0))(x, z)
    # 4000 draws: the mean is known to 0.3 / sqrt(4000), the spread to 1.2 %
    np.testing.assert_allclose(gradients.mean(0), [1.0, -2.0], atol=0.02)
    np.testing.assert_allclose(gradients.std(0), 0.3, rtol=0.05)


# language


def topics():
    text = pydoc_data.topics.topics
    return "\n".join(text[key] for key in sorted(text))


def test_char_lm_facts_are_those_of_the_text(make):
    facts, text = make("char_lm").facts, topics()
    assert facts["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert facts["characters"] == len(text)
    assert facts["vocabulary"] == len(set(text))
    singles = collections.Counter(text)
    unigram = sum(n / len(text) * math.log(len(text) / n) for n in singles.values())
    assert facts["unigram_nats"] == pytest.approx(unigram)
    pairs = collections.Counter(itertools.pairwise(text))
    before = collections.Counter(text[:-1])
    bigram = sum(
        n / (len(text) - 1) * math.log(before[pair[0]] / n) for pair, n in pairs.items()
    )
    assert facts["bigram_nats"] == pytest.approx(bigram)
    assert bigram < unigram < math.log(len(singles))


def test_char_lm_trains_on_the_first_nine_tenths_of_the_text(make):
    text = topics()
    letters = np.array(sorted(set(text)))
    begin = text[: len(text) - len(text) // 10]
    windows = make("char_lm", context=40).batches(0, 0, 10)
    for window in windows.reshape(-1, 41):
        assert "".join(letters[window]) in begin


@pytest.mark.parametrize("name", ["char_lm", "tokens"])
def test_a_network_of_zeros_is_as_good_as_chance(make, name):
    task = make(name)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)
    vocab = task.facts.get("vocabulary", 16)
    chance = pytest.approx(math.log(vocab), rel=1e-5)
    assert task.loss(zeros, first(task.batches(0, 0, 1))) == chance
    assert task.evaluate(zeros) == {"train_loss": chance, "test_loss": chance}


def test_windows_start_at_every_place_of_every_text():
    texts = [np.arange(100, 112), np.arange(200, 206), np.arange(300, 330)]
    task = tasks.predict_next(texts, texts, vocab=400, context=4, batch_size=64)
    windows = task.batches(0, 0, 20).reshape(-1, 5)
    assert (np.diff(windows) == 1).all()  # never across two texts
    starts = {int(start) for text in texts for start in text[: len(text) - 4]}
    assert set(windows[:, 0].tolist()) == starts


@pytest.mark.parametrize("tokens_evaluated", [3, 12, 10_000])
def test_evaluated_windows_predict_no_token_twice(tokens_evaluated):
    texts = [np.arange(100, 113), np.arange(200, 206), np.arange(300, 330)]
    windows = language._evaluated(texts, 4, tokens_evaluated)
    there_are = (13 - 1) // 4 + (6 - 1) // 4 + (30 - 1) // 4
    assert windows.shape == (min(there_are, max(1, tokens_evaluated // 4)), 5)
    assert (np.diff(windows) == 1).all()
    predicted = windows[:, 1:].ravel()
    assert len(set(predicted.tolist())) == predicted.size


def test_about_twelve_thousand_characters_are_evaluated():
    windows = language._evaluated([np.arange(400_000)], 64, 12_288)
    assert 8_000 <= windows[:, 1:].size <= 16_000
    assert windows[-1, 0] > 0.99 * 400_000  # spread to the end


def texts_of(monkeypatch, make_task, *args, **options):
    """What a language task trains on and what it holds out."""
    with monkeypatch.context() as patch:
        patch.setattr(language, "predict_next", lambda train, test, **_: (train, test))
        return make_task(*args, **options)


def test_the_end_of_every_shard_is_held_out(tmp_path, monkeypatch):
    shards = [np.arange(length) % 50 for length in (100, 1600, 5000)]
    for number, shard in enumerate(shards):
        write_shard(tmp_path / f"{number}.bin", shard)
    asked = dict(pattern=f"{tmp_path}/*.bin", vocab=50, **TEXT)
    train, test = texts_of(monkeypatch, tasks.tokens, **asked)
    assert [len(text) for text in test] == [17, 17, 50]  # one window, or a hundredth
    for shard, begin, end in zip(shards, train, test, strict=True):
        both = np.concatenate([begin[: len(begin)], end[: len(end)]])
        np.testing.assert_array_equal(both, shard)
    assert tasks.tokens(**asked).facts == {
        "shards": 3,
        "train_tokens": 6700 - 84,
        "test_tokens": 84,
    }


def test_the_last_tenth_of_the_text_is_held_out(monkeypatch):
    [train], [test] = texts_of(monkeypatch, tasks.char_lm)
    text = topics()
    letters = np.array(sorted(set(text)))
    assert "".join(letters[np.concatenate([train, test])]) == text
    assert len(test) == len(text) // 10


class Frequencies(nn.Module):
    """A stand-in for the Transformer that looks at nothing."""

    vocab: int

    @nn.compact
    def __call__(self, tokens):
        logits = self.param("logits", nn.initializers.zeros, (self.vocab,))
        return jnp.broadcast_to(logits, (*tokens.shape, self.vocab))


def test_train_and_test_losses_are_those_of_the_two_texts(monkeypatch):
    monkeypatch.setattr(models, "Transformer", lambda vocab, **_: Frequencies(vocab))
    train, test = [np.zeros(100, int)], [np.repeat([0, 1], [17, 64])]
    task = tasks.predict_next(train, test, vocab=2, **TEXT)
    params = {"logits": jnp.array([2.0, 0.0])}
    seldom, often = math.log(1 + math.exp(2)), math.log(1 + math.exp(-2))
    metrics = task.evaluate(params)
    assert metrics["train_loss"] == pytest.approx(often, rel=1e-5)
    # 80 tokens are predicted: the first 16 are 0, the others 1
    expected = 0.2 * often + 0.8 * seldom
    assert metrics["test_loss"] == pytest.approx(expected, rel=1e-5)
    batch = first(task.batches(0, 0, 1))
    assert task.loss(params, batch) == pytest.approx(often, rel=1e-5)


def test_shards_stay_on_disk(tmp_path):
    write_shard(tmp_path / "a.bin", np.zeros(200))
    shard = module_of("tokens")._open(str(tmp_path / "a.bin"), 10)
    assert isinstance(shard, np.memmap)


class Recording(np.memmap):
    """A shard that notes what is read of it."""

    read = ()

    def __getitem__(self, part):
        Recording.read += tuple((self.filename, i) for i in range(*part.indices(1000)))
        return super().__getitem__(part)


def test_of_shards_only_the_windows_that_are_used_are_read(tmp_path, monkeypatch):
    for number in range(8):
        write_shard(tmp_path / f"{number}.bin", np.arange(1000) % 50)
    monkeypatch.setattr(np, "memmap", Recording)
    monkeypatch.setattr(Recording, "read", ())
    task = tasks.tokens(f"{tmp_path}/*.bin", vocab=50, **TEXT, evaluated_tokens=16)
    evaluated = {shard for shard, _ in Recording.read}
    assert len(Recording.read) == 2 * 17 and len(evaluated) == 1
    Recording.read = ()
    task.batches(0, 0, 1, np.array([3, 5]))  # two of eight windows
    assert len(Recording.read) == 2 * 17
    assert len({shard for shard, _ in Recording.read}) <= 2


# images


def numbers_of(batch):
    return batch["image"][..., 0, 0, 0]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_image_is_seen_once_an_epoch(make, seed):
    task = make("tfds")
    seen = numbers_of(task.batches(seed, 0, 15))  # 15 batches of 8: two epochs of 60
    epochs = seen.reshape(2, 60)
    np.testing.assert_array_equal(np.sort(epochs), [range(60), range(60)])
    assert not np.array_equal(*epochs)


def test_neighboring_seeds_share_no_epoch(make):
    # a shuffle seeded with seed + epoch would give them the same orders, one late
    task = make("tfds")
    epochs = [
        numbers_of(task.batches(seed, 0, 15)).reshape(2, 60) for seed in (0, 1, 2)
    ]
    for one, other in itertools.combinations(np.concatenate(epochs), 2):
        assert not np.array_equal(one, other)


def test_images_keep_their_labels_and_bytes(make):
    batch = make("tfds").batches(0, 0, 3)
    assert batch["image"].dtype == np.uint8
    assert batch["image"].shape == (3, 8, 8, 8, 1)
    assert batch["label"].dtype == np.int32
    np.testing.assert_array_equal(numbers_of(batch) % 4, batch["label"])


def test_images_are_read_without_tensorflow(make):
    make("tfds").batches(0, 0, 1)
    assert "tensorflow" not in sys.modules


def test_no_more_images_are_evaluated_than_fit(image_dir, monkeypatch):
    monkeypatch.setattr(module_of("images"), "EVALUATED_BYTES", 25 * 64)
    assert tasks.images("tiny_images", batch_size=8, data_dir=image_dir).facts == {
        "train_examples": 60,
        "test_examples": 20,
        "evaluated_train_examples": 25,
        "evaluated_test_examples": 20,
    }


@pytest.mark.parametrize(
    ("splits", "train", "test"),
    [
        ({"train": range(20), "validation": range(20, 30)}, 20, 10),
        ({"train": range(20)}, 15, 5),
    ],
)
def test_other_images_are_held_out_where_there_is_no_test_split(
    tmp_path, splits, train, test
):
    prepare_images(tmp_path, splits=splits)
    task = tasks.images("tiny_images", batch_size=8, data_dir=str(tmp_path))
    assert (task.facts["train_examples"], task.facts["test_examples"]) == (train, test)
    assert len(np.unique(numbers_of(task.batches(0, 0, 5)))) == train


# photographs: images of varying size


def photograph(number):
    """Its number in one channel, and in the others x and y, of a size of its own."""
    from PIL import Image

    y, x = np.mgrid[: 40 + number, : 90 - 2 * number]
    image = np.stack([0 * x + 10 * number, x, y], axis=-1)
    return Image.fromarray(image.astype(np.uint8))


def photos_at(directory, train, validation):
    """The folder, with photographs of these numbers written to it."""
    import tensorflow_datasets as tfds

    prepare_images(
        directory,
        splits={"train": train, "validation": validation},
        features={
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(num_classes=4),
        },
        name="photos",
        image_of=photograph,
    )
    return str(directory)


@pytest.fixture(scope="module")
def photo_dir(tmp_path_factory):
    return photos_at(tmp_path_factory.mktemp("photos"), range(12), range(12, 17))


def photos(directory, **options):
    sizes = dict(batch_size=8, image_size=32) | options
    return tasks.images("photos", data_dir=directory, **sizes)


def test_photographs_are_cut_and_seen_once_an_epoch_with_their_labels(photo_dir):
    batch = photos(photo_dir).batches(1, 0, 3)
    assert batch["image"].shape == (3, 8, 32, 32, 3)
    assert batch["image"].dtype == np.uint8
    numbers = batch["image"][..., 0, 0, 0] // 10
    np.testing.assert_array_equal(batch["label"], numbers % 4)
    epochs = np.sort(numbers.reshape(2, 12))
    np.testing.assert_array_equal(epochs, [range(12), range(12)])
    boxes = {image[..., 1:].tobytes() for image in batch["image"].reshape(24, -1, 3)}
    assert len(boxes) == 24  # an example is cut anew in each epoch


@pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))
def test_a_photograph_s_cut_does_not_depend_on_who_draws_it(photo_dir, seed):
    batches = photos(photo_dir).batches
    whole = batches(seed, 0, 4)
    chex.assert_trees_all_equal(whole, batches(seed, 0, 4))
    later = jax.tree.map(lambda leaf: leaf[3:], whole)
    chex.assert_trees_all_equal(later, batches(seed, 3, 4))
    for part in (slice(2, 5), np.array([7, 0])):
        expected = jax.tree.map(lambda leaf, part=part: leaf[:, part], whole)
        chex.assert_trees_all_equal(batches(seed, 0, 4, part), expected)
    assert not np.array_equal(whole["image"], batches(seed + 1, 0, 4)["image"])


def test_no_photograph_but_those_of_the_part_is_cut(photo_dir, monkeypatch):
    task, cut = photos(photo_dir), []
    monkeypatch.setattr(
        crops, "for_training", lambda image, rng, size: cut.append(1) or image[:8, :8]
    )
    task.batches(0, 0, 3, np.array([1, 6]))
    assert len(cut) == 3 * 2


def test_the_middle_of_photographs_is_evaluated(photo_dir, monkeypatch):
    seen = {}

    def classify(network, batches, train, test, *, facts, examples):
        seen.update(model=network, train=train, test=test, examples=examples)

    monkeypatch.setattr(classification, "classify", classify)
    monkeypatch.setattr(networks, "linen", lambda model: model)
    monkeypatch.setattr(module_of("images"), "EVALUATED_BYTES", 7 * 32 * 32 * 3)
    photos(photo_dir, dtype="bfloat16")
    assert seen["model"] == models.ResNet50(classes=4, dtype=jnp.bfloat16)
    assert seen["examples"] == 8
    assert [len(seen[split]["label"]) for split in ("train", "test")] == [7, 5]
    for image in (*seen["train"]["image"], *seen["test"]["image"]):
        number = image[0, 0, 0] // 10
        expected = crops.for_evaluation(np.asarray(photograph(number)), 32)
        np.testing.assert_array_equal(image, expected)


# networks


def test_a_shifted_convolution_is_a_convolution():
    x = jax.random.normal(jax.random.key(0), (2, 6, 4, 3))
    layer = models.ShiftedConv(5)
    params = layer.init(jax.random.key(1), x)
    kernel = params["params"]["Dense_0"]["kernel"].reshape(3, 3, 3, 5)
    expected = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(layer.apply(params, x), expected, atol=1e-5)


def test_the_transformer_never_looks_ahead():
    model = models.Transformer(vocab=7, context=10, width=8, depth=2, heads=2)
    tokens = jnp.arange(10)[None] % 7
    params = jax.jit(model.init)(jax.random.key(0), tokens)
    both = jnp.concatenate([tokens, tokens.at[0, 6].set(0)])
    logits, changed = jax.jit(model.apply)(params, both)[:, None]
    np.testing.assert_allclose(logits[:, :6], changed[:, :6], atol=1e-6)
    assert (jnp.abs(logits - changed)[:, 6:].max(-1) > 1e-4).all()


def test_resnet20_has_the_parameters_of_the_paper():
    images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.uint8)
    model = models.ResNet20(classes=10)
    params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    kernels = 9 * 3 * 16 + 9 * (6 * 16 * 16 + 16 * 32 + 5 * 32 * 32)
    kernels += 9 * (32 * 64 + 5 * 64 * 64)
    scales = 2 * (7 * 16 + 6 * 32 + 6 * 64)
    dense = 64 * 10 + 10
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == (
        kernels + scales + dense
    )
    assert jax.eval_shape(model.apply, {"params": params}, images).shape == (1, 10)


def test_resnet50_has_the_parameters_of_the_paper():
    photographs = jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.uint8)
    model = models.ResNet50(classes=1000)
    params = jax.eval_shape(model.init, jax.random.key(0), photographs)["params"]
    kernels, scales, before = 7 * 7 * 3 * 64, 2 * 64, 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        after = 4 * width
        kernels += before * width + (blocks - 1) * after * width  # the first 1 x 1
        kernels += blocks * (9 * width**2 + width * after)
        kernels += before * after  # the shortcut of the first block
        scales += 2 * (blocks * (2 * width + after) + after)
        before = after
    total = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert total == kernels + scales + 2048 * 1000 + 1000
    assert total == 25_557_032  # as many as with BatchNorm
    assert jax.eval_shape(model.apply, {"params": params}, photographs).shape == (
        *(2, 1000),
    )


def test_a_bottleneck_begins_as_its_shortcut():
    x = jax.random.normal(jax.random.key(0), (1, 4, 4, 128))
    block = models.BottleneckBlock(channels=32, stride=1)
    out, _ = jax.jit(block.init_with_output)(jax.random.key(1), x)
    np.testing.assert_array_equal(out, nn.relu(x))


def test_the_transformer_in_bfloat16_is_that_in_float32_but_for_rounding():
    sizes = dict(vocab=7, context=10, width=32, depth=1, heads=2)
    plain = models.Transformer(**sizes)
    half = models.Transformer(**sizes, dtype=jnp.bfloat16)
    tokens = jnp.arange(20).reshape(2, 10) % 7
    params = jax.jit(plain.init)(jax.random.key(0), tokens)
    ours, theirs = (jax.jit(model.apply)(params, tokens) for model in (half, plain))
    assert ours.dtype == jnp.float32
    error = jnp.linalg.norm(ours - theirs) / jnp.linalg.norm(theirs)
    # bfloat16 has 8 bits: it rounds by 2^-9, and some ten roundings follow each other
    assert 1e-4 < error < 0.05


NETWORKS = [
    (functools.partial(models.Transformer, 7, 10, 32, 2, 2), jnp.zeros((2, 10), int)),
    (functools.partial(models.ResNet20, 5), jnp.zeros((2, 32, 32, 3), jnp.uint8)),
    (functools.partial(models.ResNet50, 5), jnp.zeros((2, 64, 64, 3), jnp.uint8)),
]


@pytest.mark.parametrize(("network", "x"), shortened(NETWORKS, *NETWORKS[:2]))
def test_in_bfloat16_products_are_and_parameters_and_logits_are_not(network, x):
    half, key = network(dtype=jnp.bfloat16), jax.random.key(0)
    params = jax.eval_shape(half.init, key, x)
    plain = jax.eval_shape(network(dtype=jnp.float32).init, key, x)
    chex.assert_trees_all_equal_shapes_and_dtypes(params, plain)
    assert jax.eval_shape(half.apply, params, x).dtype == jnp.float32
    products = [
        equation
        for equation in jax.make_jaxpr(half.apply)(params, x).jaxpr.eqns
        if equation.primitive.name in ("dot_general", "conv_general_dilated")
    ]
    inputs = [equation.invars[1].aval.dtype for equation in products]
    kernels = len([leaf for leaf in jax.tree.leaves(params) if leaf.ndim > 1])
    assert inputs.count(jnp.bfloat16) >= kernels - 2  # not the last of a ResNet


# what is refused


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("digits_mlp", dict(width=0), r"`width` must be at least 1, got 0"),
        ("digits_mlp", dict(depth=-1), r"`depth` must be at least 0, got -1"),
        (
            "digits_mlp",
            dict(batch_size=-1),
            r"must lie in 0 \.\. 1348.* -1",
        ),
        ("digits_mlp", dict(batch_size=1349), r"lie in 0 \.\. 1348.*got 1349"),
        (
            "digits_mlp",
            dict(test_fraction=0.0),
            r"test_fraction` must leave.* 0\.0",
        ),
        (
            "digits_cnn",
            dict(test_fraction=1.0),
            r"test_fraction` must leave.* 1\.0",
        ),
        ("breast_cancer", dict(l2=0.0), r"`l2` must be positive.*got 0\.0"),
        ("breast_cancer", dict(l2=math.nan), r"`l2` must be positive.*got nan"),
        ("breast_cancer", dict(batch_size=500), r"`batch_size` must lie in 0 \.\. 427"),
        ("quadratic", dict(eigenvalues=()), r"`eigenvalues` must be a tuple with"),
        ("quadratic", dict(eigenvalues=(1.0, -1.0)), r"eigenvalues.*got \(1\.0, -1\.0"),
        ("quadratic", dict(eigenvalues=(math.inf,)), r"eigenvalues.*got \(inf,\)"),
        ("char_lm", dict(width=15), r"`width` must be a multiple.*got 15 and 2"),
        ("char_lm", dict(heads=0), r"`heads` must be at least 1"),
        ("char_lm", dict(depth=0), r"`depth` must be at least 1"),
        ("char_lm", dict(batch_size=0), r"`batch_size` must be at least 1, got 0"),
        ("char_lm", dict(evaluated_tokens=0), r"`evaluated_tokens` must be at least"),
        ("char_lm", dict(context=0), r"`context` must be at least 1, got 0"),
        ("char_lm", dict(context=60_000), r"`context` must be below \d+.*got 60000"),
        ("tokens", dict(context=2000), r"0\.bin has 3000 tokens, and needs 4002"),
        ("tfds", dict(batch_size=0), r"`batch_size` must be at least 1, got 0"),
        ("tfds", dict(batch_size=61), r"`batch_size` must not exceed.*got 61 of 60"),
        ("tfds", dict(image_size=31), r"`image_size` must be at least 32, got 31"),
        (
            "tfds",
            dict(dtype="float16"),
            r"`dtype` must be 'float32' or .*'float16'",
        ),
        ("tokens", dict(dtype="int8"), r"`dtype` must be 'float32' or .*got 'int8'"),
    ],
)
def test_bad_options_are_refused(make, name, options, match):
    with pytest.raises(ValueError, match=match):
        make(name, **options)


@pytest.mark.parametrize("noise", [-0.1, math.inf, math.nan])
def test_bad_noise_is_refused(noise):
    with pytest.raises(ValueError, match=rf"`noise` must be.*got {noise}"):
        tasks.quadratic(noise=noise)


def test_a_pattern_without_shards_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file matches .*\*\.bin"):
        tasks.tokens(f"{tmp_path}/*.bin", vocab=16)


def test_a_shard_with_half_a_token_is_refused(tmp_path):
    (tmp_path / "odd.bin").write_bytes(bytes(1001))
    with pytest.raises(ValueError, match=r"odd\.bin has 1001 bytes, an odd number"):
        tasks.tokens(f"{tmp_path}/*.bin", vocab=16)


@pytest.mark.parametrize("place", [0, 1, 500, 966, 982])
def test_a_token_beyond_the_vocabulary_is_refused_as_it_is_read(tmp_path, place):
    """Windows are of 17 tokens; those from 0 and 983 on are evaluated."""
    numbers = np.zeros(1000)
    numbers[[place, 999]] = 65_535, 16
    evaluated = place < 17
    path = write_shard(tmp_path / "big.bin", numbers)
    beyond = rf"{path} holds the token %s at position %s, but `vocab` is 16: .*=%s or"
    sizes = TEXT | dict(evaluated_tokens=16)
    with pytest.raises(
        ValueError,
        match=beyond % ((65_535, place, 65_536) if evaluated else (16, 999, 17)),
    ):
        tasks.tokens(str(path), vocab=16, **sizes)
    numbers[999] = 0
    write_shard(path, numbers)
    if evaluated:
        return
    task = tasks.tokens(str(path), vocab=16, **sizes)
    with pytest.raises(ValueError, match=beyond % (65_535, place, 65_536)):
        task.batches(0, 0, 1000)
    tasks.tokens(str(path), vocab=65_536, **sizes).batches(0, 0, 1000)


def test_a_window_without_the_token_is_no_error(tmp_path):
    numbers = np.zeros(1000)
    numbers[900] = 16
    path = write_shard(tmp_path / "big.bin", numbers)
    task = tasks.tokens(str(path), vocab=16, **TEXT, evaluated_tokens=16)
    refused = 0
    for step in range(20):
        for window in range(8):
            part = np.array([window])
            try:
                assert task.batches(0, step, step + 1, part).max() == 0
            except ValueError:
                refused += 1
    # a window of 17 among 967 starts: 2.8 of 160
    assert 0 < refused < 12


@pytest.mark.parametrize("package", ["grain", "tensorflow_datasets", "PIL"])
def test_missing_packages_are_named(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(ValueError, match=rf"{package}.*pip install -e '\.\[tfds\]'"):
        tasks.images("cifar10")


@pytest.mark.parametrize("name", ["no_such_set", "cifar10:9.9.9", "no such"])
def test_an_unknown_data_set_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=f"TFDS knows no data set '{name}'"):
        tasks.images(name, data_dir=str(tmp_path))


def test_a_data_set_that_is_not_prepared_is_refused_with_the_command(tmp_path):
    command = f"experiments.prepare cifar10 --data_dir={tmp_path}\n"
    with pytest.raises(FileNotFoundError, match=command) as error:
        tasks.images("cifar10", data_dir=str(tmp_path))
    assert "nothing at" in str(error.value)


def test_a_data_set_in_tensorflows_format_is_refused(tmp_path):
    made = prepare_images(tmp_path, splits={"train": range(9), "test": range(9)})
    info = made.data_path / "dataset_info.json"
    record = json.loads(info.read_text())
    record["fileFormat"] = "tfrecord"
    info.write_text(json.dumps(record))
    with pytest.raises(FileNotFoundError, match=r"not prepared as.*there is tfrecord"):
        tasks.images("tiny_images", batch_size=8, data_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("features", "match"),
    [
        (lambda tfds: {"label": tfds.features.ClassLabel(num_classes=4)}, "features"),
        (
            lambda tfds: {
                "image": tfds.features.Tensor(shape=(8, 8, 1), dtype=np.uint8),
                "label": tfds.features.Scalar(np.int32),
            },
            "must have the features image and label",
        ),
        (
            lambda tfds: {
                "image": tfds.features.Tensor(
                    shape=(None, 8, None), dtype=np.uint8, encoding="zlib"
                ),
                "label": tfds.features.ClassLabel(num_classes=4),
            },
            r"must have uint8 images, .* \(1 or 3 where sizes vary\)",
        ),
    ],
)
def test_a_data_set_of_other_things_is_refused(tmp_path, features, match):
    import tensorflow_datasets as tfds

    splits = {"train": range(9), "test": range(9)}
    prepare_images(tmp_path, splits=splits, features=features(tfds))
    with pytest.raises(ValueError, match=match):
        tasks.images("tiny_images", batch_size=8, data_dir=str(tmp_path))


def test_heavy_packages_wait_until_a_task_needs_them():
    program = (
        "import sys\n"
        "from experiments import tasks\n"
        "heavy = {'sklearn', 'tensorflow_datasets', 'grain', 'tensorflow', 'PIL'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert run.stdout == "[]\n", run.stderr


# data of each worker


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("concentration", [0.01, 1.0, 100.0])
def test_a_dirichlet_split_gives_every_worker_something(seed, concentration):
    labels = np.arange(600) % 5
    owner = batches.dirichlet(labels, 6, concentration=concentration, seed=seed)
    assert owner.shape == (600,)
    assert set(owner) == set(range(6))


def test_the_smaller_the_concentration_the_fewer_classes_a_worker_has():
    labels = np.arange(6000) % 10

    def entropy(concentration):
        owner = batches.dirichlet(labels, 8, concentration=concentration, seed=0)
        shares = np.stack(
            [np.bincount(labels[owner == w], minlength=10) for w in range(8)]
        )
        shares = shares / shares.sum(axis=1, keepdims=True)
        return -(shares * np.log(np.where(shares > 0, shares, 1))).sum(axis=1).mean()

    assert entropy(0.1) < entropy(1.0) < entropy(100.0)
    assert entropy(1e4) == pytest.approx(math.log(10), rel=1e-2)


def test_a_worker_draws_its_own_examples_whoever_came_before():
    owner = np.arange(30) % 3
    draw = batches.of_workers({"x": np.arange(30)}, 4, owner)
    workers = np.array([2, 0, 0, 1, 2])
    seen = draw(7, 100, workers)["x"]
    np.testing.assert_array_equal(seen % 3, np.repeat(workers[:, None], 4, axis=1))
    np.testing.assert_array_equal(seen[3:], draw(7, 103, workers[3:])["x"])
    assert not np.array_equal(seen[1], seen[2])


@pytest.mark.parametrize(
    ("workers", "concentration"), [(3, 0.0), (3, math.nan), (31, 1.0), (0, 1.0)]
)
def test_a_split_that_cannot_be_is_refused(workers, concentration):
    with pytest.raises(ValueError, match=r"`(concentration|workers)` must be"):
        batches.dirichlet(
            np.zeros(30, int), workers, concentration=concentration, seed=0
        )
