"""Any image classification set of TensorFlow Datasets, read without TensorFlow."""

import importlib
import os

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.tasks import classification, crops, models
from experiments.tasks.task import WHOLE, Task, activations, at_least

EVALUATED_EXAMPLES = 10_000
EVALUATED_BYTES = 64 * 2**20
"""The most that is evaluated of the training split and of the held-out one. These
examples are part of the compiled program."""


def make(config: ConfigDict) -> Task:
    """ResNet-20 or ResNet-50 on `tfds:NAME`, by whether its images are of one size.

    Images of one size go to ResNet-20 as they are. Images of varying size go to
    ResNet-50, cut to `image_size`: a random box, every other one mirrored, drawn anew
    for each example and epoch; in evaluation the middle.

    The set must be on disk as array_record: `python -m experiments.prepare NAME`. Its
    examples are read as they are needed, in an order drawn anew each epoch. The split
    "test", or else "validation", is held out, or else the last `test_fraction` of
    "train". Of both the first `EVALUATED_EXAMPLES` are evaluated, or as many as fit
    into `EVALUATED_BYTES`: 445 of 224 x 224 pixels, so that an accuracy of theirs is
    known to about 2 points.

    Args:
        config: the task's section; uses `batch_size`, `data_dir`, `test_fraction`,
            `image_size` and `dtype`. NAME may carry a configuration and a version, as
            in "cifar10_corrupted/fog_3:1.0.0".

    Returns:
        The task. A batch is uint8 {"image"} and int32 {"label"}.

    Raises:
        FileNotFoundError: if the set is not prepared as array_record.
        ValueError: if it is unknown, is not one of labeled images, has fewer training
            examples than `batch_size`, or needs missing packages.
    """
    os.environ.setdefault("NO_GCE_CHECK", "true")  # or TFDS asks the network for GCE
    try:
        import grain
        import tensorflow_datasets as tfds

        importlib.import_module("PIL")  # `crops` cuts images with it
    except ImportError as error:
        raise ValueError(
            f"config.task.name: {config.name!r} needs packages that are not installed"
            f" ({error}): pip install -e '.[tfds]'."
        ) from error

    name = config.name.partition(":")[2]
    batch_size = at_least(config, "batch_size", 1)
    builder = _prepared_builder(tfds, name, config.data_dir)
    shape, classes = _image_and_classes(name, builder.info.features)
    varying = None in shape
    size = at_least(config, "image_size", 32)
    pixels = (size, size, shape[-1]) if varying else shape
    sources = {
        split: builder.as_data_source(which)
        for split, which in _splits(builder.info.splits, config.test_fraction).items()
    }
    if batch_size > len(sources["train"]):
        raise ValueError(
            "config.task.batch_size must not exceed the number of training examples,"
            f" got {batch_size} of {len(sources['train'])}."
        )
    fit = max(1, min(EVALUATED_EXAMPLES, EVALUATED_BYTES // int(np.prod(pixels))))

    def for_evaluation(image):
        return crops.for_evaluation(image, size) if varying else image

    evaluated = {
        split: _stack(
            [
                _with_label(example, for_evaluation(example["image"]))
                for example in (source[i] for i in range(min(fit, len(source))))
            ]
        )
        for split, source in sources.items()
    }

    def batches(seed, start, stop, part=WHOLE):
        endless = (
            grain.MapDataset.source(sources["train"]).seed(seed).shuffle().repeat()
        )

        def read(place):
            # a place in the endless row is an example in an epoch
            example = endless[int(place)]
            image = example["image"]
            if varying:
                rng = np.random.default_rng([seed, place])
                image = crops.for_training(image, rng, size)
            return _with_label(example, image)

        places = np.arange(start * batch_size, stop * batch_size)
        places = places.reshape(-1, batch_size)[:, part]
        # the iterator reads ahead in threads; the order stays that of the places
        read_ahead = grain.MapDataset.source(places.ravel()).map(read).to_iter_dataset()
        examples = _stack(list(read_ahead))
        return jax.tree.map(lambda x: x.reshape(*places.shape, *x.shape[1:]), examples)

    network = models.ResNet50 if varying else models.ResNet20
    return classification.classify(
        network(classes=classes, dtype=activations(config)),
        batches,
        evaluated["train"],
        evaluated["test"],
        facts={
            "train_examples": len(sources["train"]),
            "test_examples": len(sources["test"]),
            "evaluated_train_examples": len(evaluated["train"]["label"]),
            "evaluated_test_examples": len(evaluated["test"]["label"]),
        },
        examples=batch_size,
    )


def _prepared_builder(tfds, name, data_dir):
    where = os.path.expanduser(data_dir) or None
    option = f" --data_dir={data_dir}" if data_dir else ""
    try:
        builder = tfds.builder(name, data_dir=where)
    except (ValueError, AssertionError) as error:  # the latter: an unknown version
        raise ValueError(
            f"config.task.name: TFDS knows no data set {name!r}, nor is it under"
            f" config.task.data_dir {data_dir!r} ({str(error).splitlines()[0]})."
        ) from error
    on_disk = builder.is_prepared()
    if not on_disk or builder.info.file_format.value != "array_record":
        found = builder.info.file_format.value if on_disk else "nothing"
        raise FileNotFoundError(
            f"config.task.name: {name!r} is not prepared as array_record, there is"
            f" {found} at {builder.data_path}. Write it once with\n"
            f"    python -m experiments.prepare {name}{option}\n"
            "or set config.task.data_dir to where it is."
        )
    return builder


def _image_and_classes(name, features):
    missing = {"image", "label"} - set(features)
    if missing or not hasattr(features["label"], "num_classes"):
        raise ValueError(
            f"config.task.name: {name!r} must have the features image and label (of"
            f" classes), got {features}."
        )
    shape = features["image"].shape
    known = len(shape) == 3 and (None not in shape or shape[-1] in (1, 3))
    if not known or features["image"].np_dtype != np.uint8:
        raise ValueError(
            f"config.task.name: {name!r} must have uint8 images, height x width x"
            f" channels (1 or 3 where sizes vary), got {features['image']}."
        )
    return shape, features["label"].num_classes


def _splits(splits, test_fraction):
    for held_out in ("test", "validation"):
        if held_out in splits:
            return {"train": "train", "test": held_out}
    percent = round(100 * (1 - test_fraction))
    return {"train": f"train[:{percent}%]", "test": f"train[{percent}%:]"}


def _with_label(example, image):
    return {"image": image, "label": np.int32(example["label"])}


def _stack(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
