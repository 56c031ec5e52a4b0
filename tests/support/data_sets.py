"""Small data sets on disk: token shards, and images in the format of TFDS."""

from pathlib import Path
from typing import Any

import numpy as np


def write_shard(path: Path, numbers: Any) -> Path:
    """Writes a shard of tokens, and returns its path."""
    np.asarray(numbers).astype("<u2").tofile(path)
    return path


def tiny_image(number: int) -> np.ndarray:
    """An image of 8 x 8 pixels; the first one is its number."""
    image = np.full((8, 8, 1), 60 * (number % 4), np.uint8)
    image[0, 0] = number
    return image


def photograph(number: int) -> Any:
    """An image of random size: one channel is its number, the others are x and y."""
    from PIL import Image

    y, x = np.mgrid[: 40 + number, : 90 - 2 * number]
    image = np.stack([0 * x + 10 * number, x, y], axis=-1)
    return Image.fromarray(image.astype(np.uint8))


def prepare_images(
    data_dir, *, splits, features=None, name="tiny_images", image_of=tiny_image
):
    """Writes a data set in the format of TFDS; a pixel of each image is its number."""
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
        skip_registration=True,  # TFDS finds it on disk, and not by its class
    )
    result = builder(data_dir=str(data_dir), file_format="array_record")
    result.download_and_prepare()
    return result


def prepare_photographs(data_dir: Path, train: range, validation: range) -> str:
    """Writes the set "photos" with these numbers to a folder, which it returns."""
    import tensorflow_datasets as tfds

    features = {
        "image": tfds.features.Image(shape=(None, None, 3)),
        "label": tfds.features.ClassLabel(num_classes=4),
    }
    splits = {"train": train, "validation": validation}
    options = dict(splits=splits, features=features, name="photos", image_of=photograph)
    prepare_images(data_dir, **options)
    return str(data_dir)
