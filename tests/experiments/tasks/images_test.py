"""Images are read once in each epoch, unchanged; photographs are cut."""

import importlib
import itertools
import json
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import tasks
from experiments.tasks import classification, crops, models, networks
from tests.support.data_sets import photograph, prepare_images


@pytest.fixture
def evaluated_bytes(monkeypatch):
    """Sets the part of a split that is evaluated."""
    module = importlib.import_module("experiments.tasks.images")
    return lambda count: monkeypatch.setattr(module, "EVALUATED_BYTES", count)


def tiny(directory, **options):
    return tasks.images("tiny_images", batch_size=8, data_dir=str(directory), **options)


def photos(directory, **options):
    sizes = dict(batch_size=8, image_size=32) | options
    return tasks.images("photos", data_dir=directory, **sizes)


def numbers_of(batch):
    return batch["image"][..., 0, 0, 0]


def test_every_image_is_seen_once_an_epoch_in_an_order_of_its_own(make):
    # a shuffle seeded with seed + epoch would give seeds the same orders, one late
    task = make("tfds")
    epochs = np.concatenate(  # 15 batches of 8: two epochs of 60
        [numbers_of(task.batches(s, 0, 15)).reshape(2, 60) for s in (0, 1, 2)]
    )
    np.testing.assert_array_equal(np.sort(epochs), [range(60)] * 6)
    for one, other in itertools.combinations(epochs, 2):
        assert not np.array_equal(one, other)


def test_images_keep_their_labels_and_bytes(make):
    batch = make("tfds").batches(0, 0, 3)
    assert batch["image"].dtype == np.uint8
    assert batch["image"].shape == (3, 8, 8, 8, 1)
    assert batch["label"].dtype == np.int32
    np.testing.assert_array_equal(numbers_of(batch) % 4, batch["label"])
    assert "tensorflow" not in sys.modules


def test_no_more_images_are_evaluated_than_fit(image_dir, evaluated_bytes):
    evaluated_bytes(25 * 64)
    assert tiny(image_dir).facts == {
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
    task = tiny(tmp_path)
    assert (task.facts["train_examples"], task.facts["test_examples"]) == (train, test)
    assert len(np.unique(numbers_of(task.batches(0, 0, 5)))) == train


def test_photographs_are_cut_and_seen_once_an_epoch_with_their_labels(photo_dir):
    batch = photos(photo_dir).batches(1, 0, 3)
    assert batch["image"].shape == (3, 8, 32, 32, 3)
    assert batch["image"].dtype == np.uint8
    numbers = numbers_of(batch) // 10
    np.testing.assert_array_equal(batch["label"], numbers % 4)
    epochs = np.sort(numbers.reshape(2, 12))
    np.testing.assert_array_equal(epochs, [range(12), range(12)])
    boxes = {image[..., 1:].tobytes() for image in batch["image"].reshape(24, -1, 3)}
    assert len(boxes) == 24  # each epoch cuts an example in another place


def test_a_photograph_s_cut_does_not_depend_on_who_draws_it(photo_dir):
    batches = photos(photo_dir).batches
    whole = batches(1, 0, 4)
    chex.assert_trees_all_equal(whole, batches(1, 0, 4))
    later = jax.tree.map(lambda leaf: leaf[3:], whole)
    chex.assert_trees_all_equal(later, batches(1, 3, 4))
    for part in (slice(2, 5), np.array([7, 0])):
        expected = jax.tree.map(lambda leaf, part=part: leaf[:, part], whole)
        chex.assert_trees_all_equal(batches(1, 0, 4, part), expected)
    assert not np.array_equal(whole["image"], batches(2, 0, 4)["image"])


def test_no_photograph_but_those_of_the_part_is_cut(photo_dir, monkeypatch):
    task, cut = photos(photo_dir), []
    monkeypatch.setattr(
        crops, "for_training", lambda image, rng, size: cut.append(1) or image[:8, :8]
    )
    task.batches(0, 0, 3, np.array([1, 6]))
    assert len(cut) == 3 * 2


def test_the_middle_of_photographs_is_evaluated(
    photo_dir, monkeypatch, evaluated_bytes
):
    seen = {}

    def classify(network, batches, train, test, *, facts, examples):
        seen.update(model=network, train=train, test=test, examples=examples)

    monkeypatch.setattr(classification, "classify", classify)
    monkeypatch.setattr(networks, "linen", lambda model: model)
    evaluated_bytes(7 * 32 * 32 * 3)
    photos(photo_dir, dtype="bfloat16")
    assert seen["model"] == models.ResNet50(classes=4, dtype=jnp.bfloat16)
    assert seen["examples"] == 8
    assert [len(seen[split]["label"]) for split in ("train", "test")] == [7, 5]
    for image in (*seen["train"]["image"], *seen["test"]["image"]):
        number = image[0, 0, 0] // 10
        expected = crops.for_evaluation(np.asarray(photograph(number)), 32)
        np.testing.assert_array_equal(image, expected)


# sets that cannot be read


@pytest.mark.parametrize("name", ["no_such_set", "cifar10:9.9.9", "no such"])
def test_an_unknown_data_set_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=f"TFDS has no '{name}': "):
        tasks.images(name, data_dir=str(tmp_path))


def test_a_data_set_that_is_not_prepared_is_refused_with_the_command(tmp_path):
    call = rf"builder\('cifar10', data_dir='{tmp_path}'\)\.download_and_prepare"
    command = rf"nothing at .*\n.*{call}\(file_format=\"array_record\"\)\n"
    with pytest.raises(FileNotFoundError, match=command):
        tasks.images("cifar10", data_dir=str(tmp_path))


def test_a_data_set_in_tensorflows_format_is_refused(tmp_path):
    builder = prepare_images(tmp_path, splits={"train": range(9), "test": range(9)})
    info = builder.data_path / "dataset_info.json"
    record = json.loads(info.read_text())
    info.write_text(json.dumps(record | {"fileFormat": "tfrecord"}))
    with pytest.raises(FileNotFoundError, match=r"not prepared as.*there is tfrecord"):
        tiny(tmp_path)


def test_a_data_set_of_other_things_is_refused(tmp_path):
    from tensorflow_datasets import features

    varying = features.Tensor(shape=(None, 8, None), dtype=np.uint8, encoding="zlib")
    both = {"image": varying, "label": features.ClassLabel(num_classes=4)}
    splits = {"train": range(9), "test": range(9)}
    prepare_images(tmp_path, splits=splits, features=both)
    message = r"must have uint8 images, .* \(1 or 3 where sizes vary"
    with pytest.raises(ValueError, match=message):
        tiny(tmp_path)
