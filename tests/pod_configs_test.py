"""The pod configs are sound, and of the sizes that they name."""

import jax
import numpy as np
import pytest

from configs import imagenet, tokens_pod
from experiments import build, grid
from tests.tasks_test import photograph, prepare_images, write_shard

CONFIGS = {"imagenet": imagenet, "tokens_pod": tokens_pod}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_pod_config_is_one_cell_a_worker_on_a_device(name):
    config = CONFIGS[name].get_config()
    build.check(config)
    (program,) = grid.programs(config)
    assert len(grid.cells(config, program).delay) == len(config.seeds) == 1
    assert config.execution == "run" and config.exchange == "overlapped_mean"
    assert config.task.batch_size % config.mesh.workers == 0
    assert config.task.dtype == "bfloat16"


@pytest.mark.parametrize("name", CONFIGS)
def test_what_was_not_run_says_so_and_expects_nothing(name):
    assert not CONFIGS[name].get_config().expected
    assert "Not run" in CONFIGS[name].__doc__


def parameters(task):
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_the_language_model_has_124_million_parameters(tmp_path):
    config = tokens_pod.get_config()
    write_shard(tmp_path / "0.bin", np.arange(5000))
    config.task.name = f"tokens:{tmp_path}/*.bin"
    task = build.task(config)
    vocab, width, depth, context = 50304, 768, 12, 1024
    matrices = vocab * width + context * width + 12 * depth * width**2
    norms = (2 * depth + 1) * 2 * width
    assert parameters(task) == matrices + norms
    assert parameters(task) == pytest.approx(124e6, rel=0.01)
    assert task.tokens == 131_072
    # 20 tokens for each parameter
    assert config.steps * task.tokens == pytest.approx(20 * 124e6, rel=0.01)


def test_the_image_network_is_resnet50_and_the_steps_are_90_epochs(tmp_path):
    import tensorflow_datasets as tfds

    config = imagenet.get_config()
    images, epochs = 1_281_167, config.steps * config.task.batch_size / 1_281_167
    assert epochs == pytest.approx(90, rel=1e-3)
    warm_up = config.opt.warmup_steps * config.task.batch_size / images
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
    config.task.name, config.task.data_dir = "tfds:photos", str(tmp_path)
    config.task.batch_size = 8
    task = build.task(config)
    assert parameters(task) == 25_557_032
    (batch,) = task.batches(0, 0, 1, slice(0, 2))["image"]
    assert batch.shape == (2, 224, 224, 3)
