"""The pod configs are sound, and of the sizes that they name."""

import jax
import numpy as np
import pytest

from configs import imagenet, tokens_pod
from experiments import statements
from experiments.config_files import ConfigFile
from experiments.running.programs import programs
from experiments.running.trainer import Trainer
from experiments.training import Request
from tests.support.data_sets import photograph, prepare_images, write_shard

pytestmark = pytest.mark.runs

CONFIGS = {"imagenet": imagenet, "tokens_pod": tokens_pod}


@pytest.mark.parametrize("name", CONFIGS)
def test_what_was_not_run_says_so(name):
    assert "Not run" in CONFIGS[name].__doc__
    file = ConfigFile.load(CONFIGS[name].__file__)
    assert statements.about(file, file.config) == statements.Statements()


def sound(experiment):
    """One cell, a worker a device, and a mean that is one update late."""
    (arm,) = experiment.all_arms
    assert not experiment.grid
    assert experiment.seed_numbers == (0,)
    request = Request((0,), experiment.updates, None, None, experiment.evaluate_every)
    for devices, workers in ((8, 8), (16, 16), (None, jax.device_count())):
        there = request._replace(devices=devices)
        rule = arm.training.job(experiment.task, there)
        assert rule.devices and rule.workers == workers
    params = jax.ShapeDtypeStruct((3,), np.float32)
    state = jax.eval_shape(lambda x: arm.training.make().init(x), params)
    assert hasattr(state, "outbox")  # what is sent is used an update later


def parameters(task):
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize("exchange", tokens_pod.EXCHANGES)
def test_between_groups_goes_the_exchange_that_is_asked_for(tmp_path, exchange):
    write_shard(tmp_path / "0.bin", np.arange(50))
    config = tokens_pod.get_config()
    small = dict(vocab=50, width=4, depth=1, heads=2, context=4, batch_size=8)
    config.update(small | dict(workers=4, exchange=exchange, groups=2))
    config.shards = f"{tmp_path}/*.bin"
    experiment = tokens_pod.experiment(config)
    (program,) = programs(experiment)
    state = Trainer(program).shapes().state.memory
    assert hasattr(state, "outbox") == (exchange == "overlapped_mean")
    if exchange == "overlapped_mean":  # of each group one
        assert {leaf.shape[0] for leaf in jax.tree.leaves(state.outbox)} == {2}


@pytest.mark.parametrize("updates", [6, 200])
def test_a_short_trial_has_a_short_warm_up(tmp_path, updates):
    write_shard(tmp_path / "0.bin", np.arange(5000))
    config = tokens_pod.get_config()
    config.update(updates=updates, shards=f"{tmp_path}/*.bin")
    assert tokens_pod.experiment(config).updates == updates


def test_the_language_model_has_124_million_parameters(tmp_path):
    config = tokens_pod.get_config()
    write_shard(tmp_path / "0.bin", np.arange(5000))
    config.shards = f"{tmp_path}/*.bin"
    experiment = tokens_pod.experiment(config)
    sound(experiment)
    task = experiment.task
    vocab, width, depth, context = 50304, 768, 12, 1024
    matrices = vocab * width + context * width + 12 * depth * width**2
    norms = (2 * depth + 1) * 2 * width
    assert parameters(task) == matrices + norms
    assert parameters(task) == pytest.approx(124e6, rel=0.01)
    tokens = task.batches(0, 0, 1)[0, :, 1:].size  # that an update predicts
    assert tokens == 131_072
    # 20 tokens for each parameter
    assert config.updates * tokens == pytest.approx(20 * 124e6, rel=0.01)


def test_the_image_network_is_resnet50_and_the_steps_are_90_epochs(tmp_path):
    import tensorflow_datasets as tfds

    config = imagenet.get_config()
    images, epochs = 1_281_167, config.updates * config.batch_size / 1_281_167
    assert epochs == pytest.approx(90, rel=1e-3)
    warm_up = config.warmup_updates * config.batch_size / images
    assert warm_up == pytest.approx(5, rel=1e-2)
    prepare_images(
        tmp_path,
        splits={"train": range(8), "validation": range(4)},
        features={
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(num_classes=1000),
        },
        name="photos",
        image_of=photograph,
    )
    config.dataset, config.data_dir, config.batch_size = "photos", str(tmp_path), 8
    experiment = imagenet.experiment(config)
    sound(experiment)
    task = experiment.task
    assert parameters(task) == 25_557_032
    (batch,) = task.batches(0, 0, 1, slice(0, 2))["image"]
    assert batch.shape == (2, 224, 224, 3)
