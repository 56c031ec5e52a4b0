"""Small tasks and their data, made once for all files of this folder."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from tests.experiments.tasks import small
from tests.support.data_sets import prepare_images, prepare_photographs, write_shard


@pytest.fixture(scope="session")
def image_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tfds")
    prepare_images(directory, splits={"train": range(60), "test": range(60, 80)})
    return str(directory)


@pytest.fixture(scope="session")
def photo_dir(tmp_path_factory):
    """12 photographs to train on and 5 to validate."""
    directory = tmp_path_factory.mktemp("photos")
    return prepare_photographs(directory, range(12), range(12, 17))


@pytest.fixture(scope="session")
def make(tmp_path_factory, image_dir):
    """name -> the task, small, its functions compiled once for all tests."""
    shards = tmp_path_factory.mktemp("shards")
    for shard in range(2):
        write_shard(shards / f"{shard}.bin", np.arange(3000) % (11 + shard))

    @functools.cache
    def make(name, **options):
        task = small.plain(name, f"{shards}/*.bin", image_dir, options)
        jitted = {f: jax.jit(getattr(task, f)) for f in ("init", "loss", "evaluate")}
        return dataclasses.replace(task, **jitted)

    return make
