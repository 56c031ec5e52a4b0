"""Random boxes stay in their image and in their bounds; the middle is the middle."""

import numpy as np
import pytest

from experiments.tasks import crops

SIZES = [(500, 375), (375, 500), (64, 64), (1, 1), (1, 900), (900, 1), (7, 3)]


def coordinates(height, width):
    """An image whose pixels know where they are: x in one channel, y in another."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x, y, 0 * x], axis=-1).astype(np.uint8)


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_random_box_lies_in_its_image(seed, height, width):
    rng = np.random.default_rng(seed)
    for _ in range(200):
        box = crops.random_box(rng, height, width)
        assert 0 <= box.left < box.right <= width
        assert 0 <= box.top < box.bottom <= height


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_areas_and_aspects_fill_their_bounds(seed):
    rng = np.random.default_rng(seed)
    height, width = 3000, 4000  # large: sides are rounded
    boxes = np.array([crops.random_box(rng, height, width) for _ in range(2000)])
    across, down = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    for values, bounds in (
        (across * down / (height * width), crops.AREA),
        (across / down, crops.ASPECT),
    ):
        assert bounds[0] * 0.995 <= values.min() < bounds[0] * 1.1
        assert bounds[1] * 0.9 < values.max() <= bounds[1] * 1.005
    assert 0.4 < (boxes[:, 0] / np.maximum(width - across, 1)).mean() < 0.6


@pytest.mark.parametrize(
    ("size", "expected"),
    [((1, 900), (4 / 3, 1.0)), ((900, 1), (1.0, 4 / 3))],
)
def test_where_no_box_fits_the_largest_in_the_middle_is_taken(size, expected):
    box = crops.random_box(np.random.default_rng(1), *size)
    sides = box.right - box.left, box.bottom - box.top
    assert sides == pytest.approx(expected)
    middle = (box.left + box.right) / 2, (box.top + box.bottom) / 2
    assert middle == pytest.approx((size[1] / 2, size[0] / 2))


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_the_middle_is_a_square_seven_eighths_of_the_shorter_side(height, width):
    box = crops.central_box(height, width)
    side = 7 / 8 * min(height, width)
    assert (box.right - box.left, box.bottom - box.top) == pytest.approx((side, side))
    assert (box.left, box.top) == pytest.approx(
        (width - box.right, height - box.bottom)
    )


def test_what_is_cut_is_the_box():
    image = coordinates(200, 250)
    cut = crops.resized(image, crops.Box(40, 60, 140, 180), 20).astype(float)
    # pixel i of 20 covers its share of the box; an image's pixel x lies at x + 1/2
    x = 40 + 100 * (np.arange(20) + 0.5) / 20 - 0.5
    y = 60 + 120 * (np.arange(20) + 0.5) / 20 - 0.5
    inner = slice(1, -1)  # the filter of the outermost sees beyond the box, or not
    np.testing.assert_allclose(cut[5, inner, 0], x[inner], atol=0.51)
    np.testing.assert_allclose(cut[inner, 5, 1], y[inner], atol=0.51)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_cut_has_the_asked_size_and_an_even_image_stays_even(channels):
    image = np.full((40, 30, channels), 77, np.uint8)
    for cut in (
        crops.for_evaluation(image, 16),
        crops.for_training(image, np.random.default_rng(0), 16),
    ):
        assert cut.dtype == np.uint8
        np.testing.assert_array_equal(cut, np.full((16, 16, channels), 77))


def test_a_cut_depends_on_its_generator_alone_and_half_are_mirrored():
    image = coordinates(200, 250)

    def cut(seed):
        return crops.for_training(image, np.random.default_rng(seed), 12)

    np.testing.assert_array_equal(cut(5), cut(5))
    cuts = [cut(seed) for seed in range(400)]
    assert len({c.tobytes() for c in cuts}) == 400
    mirrored = np.mean([c[0, 0, 0] > c[0, -1, 0] for c in cuts])
    assert 0.4 < mirrored < 0.6  # 400 coins: four standard deviations
