"""Crops photographs of any size to squares of one size, on the host."""

import math
from typing import NamedTuple

import numpy as np

AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)
"""Bounds of a random crop: its share of the image's area, and width over height."""

CENTER = 224 / 256
"""The side of the evaluated square over the shorter side of the image."""


class Box(NamedTuple):
    """A rectangle in an image, in pixels, which may be fractions."""

    left: float
    top: float
    right: float
    bottom: float


def random_box(rng: np.random.Generator, height: int, width: int) -> Box:
    """A box of random area, aspect and place.

    The area and the logarithm of the aspect are drawn uniformly. If ten draws do not
    fit into the image, the box is the largest centered one of a permitted aspect.

    References:
        Szegedy et al., Going deeper with convolutions, 2014, arXiv:1409.4842,
        section 6.
    """
    for _ in range(10):
        area = rng.uniform(*AREA) * height * width
        aspect = math.exp(rng.uniform(*map(math.log, ASPECT)))
        across = round(math.sqrt(area * aspect))
        down = round(math.sqrt(area / aspect))
        if 0 < across <= width and 0 < down <= height:
            left = int(rng.integers(width - across, endpoint=True))
            top = int(rng.integers(height - down, endpoint=True))
            return Box(left, top, left + across, top + down)
    across = min(width, height * ASPECT[1])
    down = min(height, width / ASPECT[0])
    return _centered(across, down, height, width)


def central_box(height: int, width: int) -> Box:
    """The central square, of side `CENTER` times the shorter side of the image."""
    side = CENTER * min(height, width)
    return _centered(side, side, height, width)


def for_training(image: np.ndarray, rng: np.random.Generator, size: int) -> np.ndarray:
    """A random crop, mirrored with probability 1/2: uint8 [size, size, channels].

    Args:
        image: uint8 [height, width, channels].
        rng: the generator for this example in this epoch.
        size: the side of the result, in pixels.
    """
    cut = resized(image, random_box(rng, *image.shape[:2]), size)
    return cut[:, ::-1] if rng.random() < 0.5 else cut


def for_evaluation(image: np.ndarray, size: int) -> np.ndarray:
    """The central crop: uint8 [height, width, channels] -> [size, size, channels]."""
    return resized(image, central_box(*image.shape[:2]), size)


def resized(image: np.ndarray, box: Box, size: int) -> np.ndarray:
    """Resizes a box of an image with PIL's bilinear filter."""
    from PIL import Image  # comes with the tfds extra

    channels = image.shape[-1]
    picture = Image.fromarray(image[..., 0] if channels == 1 else image)
    cut = picture.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(cut).reshape(size, size, channels)


def _centered(across: float, down: float, height: int, width: int) -> Box:
    left, top = (width - across) / 2, (height - down) / 2
    return Box(left, top, left + across, top + down)
