"""Noise floors: what cells reached, and the variance that theory gives them."""

import math

import numpy as np
import pytest
from matplotlib.colors import to_hex

from configs import default
from experiments import figures
from experiments.figures import noise_floor
from tests.figures.delay_run import record, rows_of, workdir
from tests.figures.legible import check_legible, legend, texts

STEPS, DELAYS, SEEDS = (0.1, 0.25, 0.6), (0, 1, 2, 4, 8), (0, 1, 2)
CURVATURES, NOISE = (2.0, 0.5, 2.0), 0.3
START = 100.0


def limit(delay):
    """The closed form, over the largest curvature."""
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1))) / max(CURVATURES)


def floor(step, delay):
    """Of delays of 0 and 1, term by term: lambda/2 times the variance."""
    found = 0.0
    for curvature in CURVATURES:
        a, square = step * curvature, (step * NOISE) ** 2
        variance = square / (a * (2 - a))
        if delay:
            variance = square * (1 + a) / (a * (1 - a) * (2 + a))
        found += curvature / 2 * variance
    return found


def loss(step, delay, seed):
    """Diverged beyond the limit under one seed, and else no number of theory's."""
    if step > limit(delay):
        return math.nan if seed == 1 else START
    return step * (1 + delay) * (1 + 0.1 * seed**2)


def grid(optimizer="sgd", loss=loss, **changes):
    return [
        record(optimizer, step, delay, seed, loss(step, delay, seed), **changes)
        for step in STEPS
        for delay in DELAYS
        for seed in SEEDS
    ]


def config(**changes):
    """The default's on a quadratic; `changes` are keys such as `opt__decay`."""
    made = default.get_config()
    made.task.name, made.task.noise = "quadratic", NOISE
    made.task.eigenvalues, made.figures = CURVATURES, ("noise_floor",)
    made.update_from_flattened_dict(
        {key.replace("__", "."): value for key, value in changes.items()}
    )
    return made.to_dict()


@pytest.fixture
def drawn(tmp_path):
    settings = config()
    curves = noise_floor.arrange(rows_of(tmp_path, grid()), settings)
    return noise_floor.draw(curves, settings)


def points(axis):
    """x and y of the marks of each step size."""
    return [line.get_data() for line in axis.lines if line.get_marker() != "None"]


def theories(axis):
    return [line.get_data() for line in axis.lines if line.get_marker() == "None"]


def bars(axis):
    """The range of the seeds in each cell of each step size that has one."""
    return [
        np.asarray([bar for bar in own.get_segments() if len(bar) == 2])
        for own in axis.collections
        if own.get_offset_transform() != axis.get_xaxis_transform()
    ]


def mean(step, delay):
    return np.mean([loss(step, delay, seed) for seed in SEEDS])


def test_points_are_means_over_seeds_at_each_step_size(drawn):
    floors, _ = drawn.axes
    for (x, y), step in zip(points(floors), STEPS, strict=True):
        assert tuple(x) == DELAYS
        np.testing.assert_allclose(y, [mean(step, delay) for delay in DELAYS])
    assert floors.get_xlabel() == "staleness (updates)"
    assert floors.get_ylabel() == "training loss at the end"
    assert floors.get_yscale() == "log"
    assert legend(drawn)[:3] == [f"step {step}" for step in STEPS]
    check_legible(drawn)


def test_bars_are_the_range_of_the_seeds(drawn):
    floors, _ = drawn.axes
    for found, step in zip(bars(floors), STEPS, strict=True):
        there = [delay for delay in DELAYS if step < limit(delay)]
        expected = [
            [[delay, loss(step, delay, 0)], [delay, loss(step, delay, 2)]]
            for delay in there
        ]
        np.testing.assert_allclose(found, expected)


def test_lines_are_half_the_curvatures_times_the_variances(drawn):
    floors, _ = drawn.axes
    assert "theory" in legend(drawn)
    for (x, y), step in zip(theories(floors), STEPS, strict=True):
        np.testing.assert_array_equal(x, np.arange(DELAYS[-1] + 1))
        for delay in (0, 1):
            own = floor(step, delay) if step < limit(delay) else math.nan
            np.testing.assert_allclose(y[delay], own, rtol=1e-9)
        beyond = [step >= limit(delay) for delay in x]
        np.testing.assert_array_equal(np.isnan(y), beyond)
        assert (np.diff(y[~np.isnan(y)]) > 0).all()


def test_what_diverged_is_a_cross_in_the_row_of_its_step_size(drawn):
    floors, _ = drawn.axes
    crosses = [
        marks
        for marks in floors.collections
        if marks.get_offset_transform() == floors.get_xaxis_transform()
    ]
    heights = set()
    for marks, line, step in zip(crosses, theories(floors), STEPS, strict=True):
        diverged = [delay for delay in DELAYS if step > limit(delay)]
        assert diverged and marks.get_offsets()[:, 0].tolist() == diverged
        assert np.isnan(line[1][diverged]).all()
        (height,) = set(marks.get_offsets()[:, 1])
        assert 0.8 < height < 1.0
        heights.add(height)
    assert len(heights) == len(STEPS)
    assert "diverged" in legend(drawn)


def test_crosses_stand_above_all_that_was_measured(drawn):
    floors, _ = drawn.axes
    drawn.draw_without_rendering()
    to_axes = floors.transData + floors.transAxes.inverted()
    highest = max(np.nanmax(y) for _, y in [*points(floors), *theories(floors)])
    lowest = min(
        marks.get_offsets()[0, 1]
        for marks in floors.collections
        if marks.get_offset_transform() == floors.get_xaxis_transform()
    )
    assert to_axes.transform((1, highest))[1] < lowest - 0.05


def test_without_divergence_no_cross_is_promised(tmp_path):
    rows = rows_of(tmp_path, grid(loss=lambda step, delay, seed: step))
    figure = noise_floor.draw(noise_floor.arrange(rows, config()), config())
    assert "diverged" not in legend(figure)


def test_ratios_stand_over_the_step_size_as_a_share_of_its_limit(drawn):
    _, ratios = drawn.axes
    assert ratios.get_xlabel() == "step size / its limit"
    assert ratios.get_xlim() == (0, 1)
    assert ratios.get_title() == "measured / theory"
    for (x, y), ranges, step in zip(points(ratios), bars(ratios), STEPS, strict=True):
        np.testing.assert_allclose(x, [step / limit(delay) for delay in DELAYS])
        for i, delay in enumerate((0, 1)):
            if step < limit(delay):
                own = floor(step, delay)
                assert y[i] == pytest.approx(mean(step, delay) / own)
                low, high = loss(step, delay, 0) / own, loss(step, delay, 2) / own
                np.testing.assert_allclose(ranges[i], [[x[i], low], [x[i], high]])
        assert (np.isnan(y) == (np.asarray(x) > 1)).all()
    (one,) = theories(ratios)
    assert set(one[1]) == {1.0}


def test_momentum_moves_the_limit_and_the_floor(tmp_path):
    settings = config(opt__sgd__momentum=0.5)
    rows = rows_of(tmp_path, grid(loss=lambda step, delay, seed: 1.0))
    figure = noise_floor.draw(noise_floor.arrange(rows, settings), settings)
    floors, ratios = figure.axes
    # undelayed 2 (1 + beta), and s^2 (1 + beta) / (a (1 - beta) (2 (1 + beta) - a))
    for (x, _), (_, y), step in zip(
        points(ratios), theories(floors), STEPS, strict=True
    ):
        assert x[0] == pytest.approx(step * max(CURVATURES) / 3)
        expected = 0.0
        for curvature in CURVATURES:
            a = step * curvature
            variance = (step * NOISE) ** 2 * 1.5 / (a * 0.5 * (3 - a))
            expected += curvature / 2 * variance
        assert y[0] == pytest.approx(expected)


def test_step_sizes_differ_in_color_and_marker(drawn):
    for axis in drawn.axes:
        marks = [line for line in axis.lines if line.get_marker() != "None"]
        assert len({to_hex(line.get_color()) for line in marks}) == len(STEPS)
        assert len({line.get_marker() for line in marks}) == len(STEPS)


def test_only_the_plain_series_is_shown(tmp_path):
    records = grid() + [
        row
        for own in (
            grid("adam"),
            grid(delay_law="geometric"),
            grid(modulation="inverse"),
            grid(compensation="dc", strength=0.04),
        )
        for row in own
    ]
    rows = rows_of(tmp_path, records)
    found = noise_floor.arrange(rows, config())
    assert found == noise_floor.arrange(rows_of(tmp_path, grid()), config())
    assert [curve.steps_tried for curve in found] == [(step,) for step in STEPS]


def test_a_run_on_a_quadratic_with_noise_has_the_figure(tmp_path):
    folder = workdir(tmp_path, grid(), **config())
    assert [path.stem for path in figures.draw(folder)] == ["noise_floor"]
    assert figures.warnings(folder) == []
    shown = texts(figures._figure(figures.load(folder), "noise_floor"))
    assert "Where does gradient noise leave the loss?" in shown


def test_delays_that_were_clipped_are_left_out(tmp_path):
    rows = rows_of(tmp_path, grid())
    clipped = noise_floor.arrange(rows, config(delay__max_delay=1))
    for curve in clipped:
        assert [point.delay for point in curve.points] == [0, 1]
    assert len(clipped) == len(STEPS)


@pytest.mark.parametrize(
    ("records", "changes"),
    [
        (grid(), {"task__name": "breast_cancer"}),
        (grid(), {"task__noise": 0.0}),
        (grid(), {"opt__decay": "cosine"}),
        (grid(), {"opt__warmup_steps": 20}),
        (grid(), {"delay__drop_above": 4}),
        (grid(), {"mesh__workers": 2}),
        (grid("adam"), {}),
        (grid(delay_law="poisson"), {}),
    ],
)
def test_other_runs_are_told_why_they_have_none(records, changes, tmp_path):
    folder = workdir(tmp_path, records, **config(**changes))
    assert figures.draw(folder) == []
    (sentence,) = figures.warnings(folder)
    assert sentence.startswith("noise_floor is not drawn: theory is of the task")
