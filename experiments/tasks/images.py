"""Image classification sets of TensorFlow Datasets, read without TensorFlow."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from experiments.tasks import classification, crops, models, networks, readers
from experiments.tasks.task import WHOLE, Task, activations, at_least

EVALUATED = 10_000
EVALUATED_BYTES = 64 * 2**20
"""The most examples and bytes of a split to evaluate: they are compiled."""


def images(
    name: str,
    *,
    batch_size: int = 128,
    data_dir: str = "",
    image_size: int = 224,
    dtype: str = "float32",
    worker_processes: int = 0,
) -> Task:
    """Trains ResNet-20 or ResNet-50 on an image set of TFDS.

    If all images have one size, they go to ResNet-20 unchanged. If sizes vary, they are
    cropped to `image_size` and go to ResNet-50: in training a random crop, mirrored
    with probability 1/2 and drawn anew for each example and epoch; in evaluation the
    central crop.

    The set must be on disk as array_record; once, with a network, TFDS writes it:

        tensorflow_datasets.builder(NAME, data_dir=DIR).download_and_prepare(
            file_format="array_record")

    Examples are read when they are needed, in a new random order each epoch. The split
    "test" is held out; without it "validation"; without both the last quarter of
    "train". Evaluation takes the first 10,000 examples of each split, or as many as fit
    into `EVALUATED_BYTES`: 445 images of 224 x 224 pixels, which give an
    accuracy to about 2 points.

    Args:
        name: the name of the set, with a configuration and a version where it has
            several: "cifar10", "cifar10_corrupted/fog_3:1.0.0".
        batch_size: images per update.
        data_dir: the folder of prepared sets; "" is TFDS's default.
        image_size: the side to which images of varying size are cropped, in pixels.
        dtype: "float32" or "bfloat16", for activations and products.
        worker_processes: the number of processes that read and decode images, for each
            process of the run; they start with the first batch. With 0, threads read.
            The batches are the same.

    Returns:
        The task. A batch is uint8 {"image"} and int32 {"label"}.

    Raises:
        FileNotFoundError: if the set is not prepared as array_record.
        ValueError: if the set is unknown, or does not hold images of 8 bits.
    """
    os.environ.setdefault("NO_GCE_CHECK", "true")  # or TFDS asks the network for GCE
    import grain
    import tensorflow_datasets as tfds

    at_least("batch_size", batch_size, 1)
    at_least("image_size", image_size, 32)
    at_least("worker_processes", worker_processes, 0)
    builder = _prepared_builder(tfds, name, data_dir)
    shape, classes = _image_and_classes(name, builder.info.features)
    varying = None in shape
    pixels = (image_size, image_size, shape[-1]) if varying else shape
    sources = {
        split: builder.as_data_source(which)
        for split, which in _splits(builder.info.splits).items()
    }
    fit = max(1, min(EVALUATED, EVALUATED_BYTES // int(np.prod(pixels))))

    def for_evaluation(image):
        return crops.for_evaluation(image, image_size) if varying else image

    evaluated = {
        split: _stack(
            [
                _with_label(example, for_evaluation(example["image"]))
                for example in (source[i] for i in range(min(fit, len(source))))
            ]
        )
        for split, source in sources.items()
    }

    read = _Training(sources["train"], image_size if varying else None)

    def in_threads(seed, places):
        one = read.row(seed)
        # the iterator reads ahead in threads and keeps the order of the places
        return [
            _stack(list(grain.MapDataset.source(places).map(one).to_iter_dataset()))
        ]

    in_processes = worker_processes and readers.Processes(read, worker_processes)

    def batches(seed, start, stop, part=WHOLE):
        places = np.arange(start * batch_size, stop * batch_size)
        places = places.reshape(-1, batch_size)[:, part]
        parts = (in_processes or in_threads)(seed, places.ravel())

        def joined(*leaves):
            return np.concatenate(leaves).reshape(*places.shape, *leaves[0].shape[1:])

        return jax.tree.map(joined, *parts)

    network = models.ResNet50 if varying else models.ResNet20
    return classification.classify(
        networks.linen(network(classes=classes, dtype=activations(dtype))),
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


@dataclasses.dataclass(frozen=True)
class _Training:
    """Reads training examples from an endless sequence, in a new order each epoch."""

    source: Any
    size: int | None  # the side of random crops; None leaves images unchanged

    def row(self, seed: int) -> Callable[[int], dict[str, np.ndarray]]:
        """A function: place in the endless sequence -> the example there."""
        import grain

        endless = grain.MapDataset.source(self.source).seed(seed).shuffle().repeat()

        def read(place):
            example = endless[int(place)]
            image = example["image"]
            if self.size is not None:
                rng = np.random.default_rng([seed, place])
                image = crops.for_training(image, rng, self.size)
            return _with_label(example, image)

        return read

    def __call__(self, seed: int, places: Sequence[int]) -> dict[str, np.ndarray]:
        return _stack(list(map(self.row(seed), places)))


def _prepared_builder(tfds, name, data_dir):
    where = os.path.expanduser(data_dir) or None
    try:
        builder = tfds.builder(name, data_dir=where)
    except (ValueError, AssertionError) as error:  # of hundreds of lines
        raise ValueError(
            f"TFDS has no {name!r}: {str(error).splitlines()[0]}"
        ) from error
    on_disk = builder.is_prepared()
    if not on_disk or builder.info.file_format.value != "array_record":
        file_format = builder.info.file_format.value if on_disk else "nothing"
        raise FileNotFoundError(
            f"{name!r} is not prepared as array_record: there is"
            f" {file_format} at {builder.data_path}. Write it once with\n"
            f"    tensorflow_datasets.builder({name!r}, data_dir={where!r})"
            '.download_and_prepare(file_format="array_record")\n'
            "or give the `data_dir` that holds it."
        )
    return builder


def _image_and_classes(name, features):
    shape = features["image"].shape
    known = len(shape) == 3 and (None not in shape or shape[-1] in (1, 3))
    if not known or features["image"].np_dtype != np.uint8:
        raise ValueError(
            f"{name!r} must have uint8 images, height x width x"
            f" channels (1 or 3 where sizes vary), got {features['image']}."
        )
    return shape, features["label"].num_classes


def _splits(splits):
    for held_out in ("test", "validation"):
        if held_out in splits:
            return {"train": "train", "test": held_out}
    return {"train": "train[:75%]", "test": "train[75%:]"}


def _with_label(example, image):
    return {"image": image, "label": np.int32(example["label"])}


def _stack(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
