"""Rates of decay over workers: slopes of the records, and what theory says of them."""

import math

import numpy as np
import pytest
from matplotlib.colors import to_hex
from scipy import special

from configs import default
from experiments import figures, theory, tuning
from experiments.figures import decay_rate
from experiments.results import Evaluation
from tests.figures import arm_run
from tests.figures.legible import check_legible, legend

STEP, SEEDS, WORKERS = 0.05, (0, 1, 2), (1, 2, 4, 8, 16, 32)
CONSTANT, GAMMA = "service=constant(2.0)", "service=gamma(1.0, 4)"
NAMES = [
    f"k_async(1) workers={workers} {law} seconds={100.0 + workers}"
    for law in (CONSTANT, GAMMA)
    for workers in WORKERS
]
SECONDS = np.linspace(0.0, 30.0, 31)


def workers_of(arm):
    return int(arm.split("workers=")[1].split()[0])


def rate(arm, seed):
    """Grows with the workers, but is below zero for the most of one law."""
    own = 0.01 * workers_of(arm) * (1 + 0.1 * seed**2)
    return -own if GAMMA in arm and workers_of(arm) == WORKERS[-1] else own


def evaluations(names=NAMES, rate=rate, step=STEP, **changes):
    """Errors that are exponentials, so that the loss is one of twice the rate."""
    return [
        Evaluation(
            **arm_run.setting(arm, "none", step, seed, **changes),
            **arm_run.metrics(0.5 * math.exp(-2 * rate(arm, seed) * seconds)),
            step=update,
            seconds=seconds,
            examples=0,
        )
        for arm in names
        for seed in SEEDS
        for update, seconds in enumerate(SECONDS.tolist())
    ]


def config(eigenvalues=(1.0,), **changes):
    """The default's on a quadratic; `changes` are keys such as `opt__decay`."""
    made = default.get_config()
    made.task.name, made.task.eigenvalues = "quadratic", eigenvalues
    made.update_from_flattened_dict(
        {key.replace("__", "."): value for key, value in changes.items()}
    )
    return made.to_dict()


def draw(names=NAMES, settings=None, **keywords):
    found = decay_rate.arrange(evaluations(names, **keywords), settings or config())
    return decay_rate.draw(found)


def marks(axis):
    """(x, y) of the points of each line, and of the stars, by marker and color."""
    return {
        (line.get_marker(), to_hex(line.get_color())): line.get_data()
        for line in axis.lines
        if line.get_marker() != "None"
    }


def theories(axis):
    """x and y of the lines of theory."""
    return [
        tuple(map(np.asarray, line.get_data()))
        for line in axis.lines
        if line.get_marker() == "None"
    ]


def test_points_are_the_mean_rates_of_the_seeds():
    figure = draw()
    (axis,) = figure.axes
    points = [at for (marker, _), at in marks(axis).items() if marker != "*"]
    for (x, y), law in zip(points, (CONSTANT, GAMMA), strict=True):
        assert tuple(x) == WORKERS
        own = [name for name in NAMES if law in name]
        expected = [np.mean([rate(name, seed) for seed in SEEDS]) for name in own]
        np.testing.assert_allclose(y, expected, rtol=1e-9)
    assert axis.get_xlabel() == "workers" and axis.get_xscale() == "log"
    assert axis.get_ylabel() == "rate of decay (1 / simulated s)"
    check_legible(figure)


def test_bars_are_the_range_of_the_seeds():
    (axis,) = draw().axes
    for bars, law in zip(axis.collections, (CONSTANT, GAMMA), strict=True):
        own = [name for name in NAMES if law in name]
        expected = [
            [[workers_of(name), min(values)], [workers_of(name), max(values)]]
            for name in own
            for values in [[rate(name, seed) for seed in SEEDS]]
        ]
        np.testing.assert_allclose(bars.get_segments(), expected, rtol=1e-9)


@pytest.mark.parametrize("eigenvalues", [(1.0,), (0.4, 1.0, 0.7), (0.0, 3.0, 3.0)])
def test_the_line_of_constant_times_is_lambert_s_for_the_slowest_mode(eigenvalues):
    names = [name for name in NAMES if CONSTANT in name]
    (axis,) = draw(names, config(eigenvalues)).axes
    ((x, y),) = theories(axis)
    assert (x[0], x[-1]) == (WORKERS[0], WORKERS[-1]) and (x % 1 == 0).all()
    modes = STEP * np.asarray([value for value in eigenvalues if value])[:, None]
    seconds = 2.0 * (1 - 1 / (2 * x))
    rates = -special.lambertw(-modes * (x - 0.5)).real / seconds
    rates[:, x == 1] = -np.log(np.abs(1 - modes)) / 2.0  # who waits for nobody
    np.testing.assert_allclose(y, rates.min(axis=0), rtol=1e-9)


def test_the_star_of_one_curvature_is_at_critical_damping():
    names = [name for name in NAMES if CONSTANT in name]
    figure = draw(names)
    ((_, ((workers,), (fastest,))),) = [
        (key, at) for key, at in marks(figure.axes[0]).items() if key[0] == "*"
    ]
    assert abs(workers - (1 / (math.e * STEP) + 0.5)) < 1
    ((x, y),) = theories(figure.axes[0])
    assert fastest == y.max() and workers == x[y.argmax()]
    assert "fastest in theory" in legend(figure)


def test_two_curvatures_move_the_star_to_where_both_are_equally_slow():
    names = [name for name in NAMES if CONSTANT in name]
    (axis,) = draw(names, config((0.2, 1.0))).axes
    ((_, ((workers,), (fastest,))),) = [
        (key, at) for key, at in marks(axis).items() if key[0] == "*"
    ]
    near = workers + np.asarray([-1, 0, 1])
    a, seconds = STEP * (near - 0.5), 2.0 * (1 - 1 / (2 * near))
    stiff, slow = (-special.lambertw([-a, -a / 5]).real) / seconds
    assert fastest == pytest.approx(min(stiff[1], slow[1]))
    assert stiff[0] > slow[0] and stiff[2] < slow[2]
    assert workers > 2 * (1 / (math.e * STEP) + 0.5)


def test_memoryless_times_have_a_star_for_one_curvature_alone():
    names = [f"k_async(1) workers={count}" for count in WORKERS]  # the default's times
    for eigenvalues, stars in (((1.0,), 1), ((0.2, 1.0), 0)):
        figure = draw(names, config(eigenvalues))
        found = [key for key in marks(figure.axes[0]) if key[0] == "*"]
        assert len(found) == stars == legend(figure).count("fastest in theory")
        assert len(theories(figure.axes[0])) == 1


def test_no_star_stands_beyond_the_workers_that_were_run():
    figure = draw([f"k_async(1) workers={count} {GAMMA}" for count in (1, 2, 4)])
    assert [key for key in marks(figure.axes[0]) if key[0] == "*"] == []
    assert "fastest in theory" not in legend(figure)
    assert "theory, mean over runs" in legend(figure)


@pytest.mark.parametrize(
    ("changes", "arm", "series"),
    [
        ({"opt__sgd__momentum": 0.9}, "k_async(1)", {}),
        ({"opt__decay": "cosine"}, "k_async(1)", {}),
        ({"opt__warmup_steps": 20}, "k_async(1)", {}),
        ({}, "k_async(1) warmup_steps=20", {}),
        ({}, "k_async(2)", {}),
        ({}, "k_sync(1)", {}),
        ({}, "k_async(1) speeds=linear", {}),
        ({}, "k_async(1) slow_workers=1 slow_factor=3.0", {}),
        ({"cluster__latency_seconds": 0.1}, "k_async(1)", {}),
        ({}, "k_async(1) message_bytes=1.0 bytes_per_second=1.0", {}),
        ({}, "k_async(1) read_spread=0.5", {}),
        ({}, "k_async(1) service=pareto(1.0, 2.0)", {}),
        ({}, "k_async(1)", {"optimizer": "adam"}),
        ({}, "k_async(1)", {"modulation": "inverse"}),
        ({}, "k_async(1)", {"compensation": "dc"}),
    ],
)
def test_where_theory_does_not_hold_none_is_drawn(changes, arm, series):
    protocol, *rest = arm.split(" ", 1)
    names = [" ".join([protocol, f"workers={count}", *rest]) for count in (4, 8)]
    figure = draw(names, config(**changes), **series)
    assert theories(figure.axes[0]) == []
    assert [label for label in legend(figure) if "theory" in label] == []
    ((x, _),) = marks(figure.axes[0]).values()
    assert tuple(x) == (4, 8)


@pytest.mark.parametrize(
    "arm",
    [
        "k_async(k=1) slow_workers=3",  # as slow as the others
        "k_batch_async(1) message_bytes=8.0",  # in no time
        "k_async(1) service=shifted_exponential(0.5, 0.5)",
        "k_async(1) service=empirical((0.5, 1.5))",
    ],
)
def test_where_it_holds_it_is_drawn(arm):
    protocol, *rest = arm.split(" ", 1)
    names = [" ".join([protocol, f"workers={count}", *rest]) for count in (4, 8)]
    assert len(theories(draw(names).axes[0])) == 1


def test_below_zero_the_error_grows():
    figure = draw()
    (axis,) = figure.axes
    (shade,) = axis.patches
    assert shade.get_y() + shade.get_height() == 0
    assert shade.get_y() == axis.get_ylim()[0] < -0.01 * WORKERS[-1]
    assert "the error grows" in legend(figure)
    figure = draw([name for name in NAMES if CONSTANT in name and "=32" not in name])
    assert figure.axes[0].get_ylim()[0] == 0
    assert "the error grows" not in legend(figure)


def test_labels_are_what_tells_lines_apart():
    assert legend(draw())[:2] == [CONSTANT, GAMMA]
    found = decay_rate.arrange(evaluations(NAMES[:6]), config())
    assert list(found) == ["k_async(1) plain step=0.05"]
    several = evaluations() + evaluations(step=0.1)
    found = decay_rate.arrange(several, config())
    assert list(found) == [
        f"{law} step={step}" for step in (0.05, 0.1) for law in (CONSTANT, GAMMA)
    ]
    assert [line.theory.stiffest for line in found.values()] == [0.05] * 2 + [0.1] * 2
    check_legible(decay_rate.draw(found))
    bare = [f"k_async(1) workers={count}" for count in (2, 4)]
    found = decay_rate.arrange(evaluations([*bare, *NAMES]), config())
    assert list(found) == ["k_async(1)", CONSTANT, GAMMA]


def test_workers_ascend_whatever_the_order_of_the_arms():
    once, again = (
        decay_rate.arrange(evaluations(names), config())[CONSTANT]
        for names in (NAMES, NAMES[::-1])
    )
    assert tuple(again.workers) == WORKERS
    np.testing.assert_array_equal(again.rates, once.rates)


def test_a_baseline_that_was_run_twice_counts_once():
    again = evaluations(rate=lambda arm, seed: 9.0, placement="before")
    once, twice = (
        decay_rate.arrange(rows, config())
        for rows in (evaluations(), evaluations() + again)
    )
    for label, line in once.items():
        np.testing.assert_array_equal(line.rates, twice[label].rates)


def loss(*modes):
    """Of modes (size, rate), at SECONDS."""
    return sum(size * np.exp(-2 * rate * SECONDS) for size, rate in modes)


def test_a_rate_is_measured_once_the_fast_modes_are_gone():
    slow, fast = 0.1, 2.0
    measured = decay_rate.measure(SECONDS, loss((1.0, slow), (100.0, fast)))
    assert measured == pytest.approx(slow, rel=1e-6)


@pytest.mark.parametrize("rate", [1.5, -1.5])
def test_what_float32_cannot_hold_is_left_out(rate):
    # of 30 s those are within float32 in which exp(3 t) is below 1e30
    end = math.ceil(30 * math.log(10) / 3)
    for first in (0.0, math.inf, math.nan, *loss((1.0, rate))[end:]):
        path = loss((1.0, rate))
        path[end : end + 2], path[end + 2 :] = first, 0.3  # as if it had come back
        assert decay_rate.measure(SECONDS, path) == pytest.approx(rate)
    path = loss((1.0, rate))
    path[20:] = path[20]  # of the order of 1e26, or 1 / 1e26: that is held
    assert abs(decay_rate.measure(SECONDS, path)) < 0.9 * abs(rate)


def test_a_rate_needs_three_points():
    path = loss((1.0, 0.1))
    # the first third is none of them
    assert math.isnan(decay_rate.measure(SECONDS[:3], path[:3]))
    assert decay_rate.measure(SECONDS[:4], path[:4]) == pytest.approx(0.1)


def test_a_number_of_workers_that_cannot_be_measured_has_no_point():
    names = [f"k_async(1) workers={count}" for count in (2, 4)]
    rows = [
        row
        for row in evaluations(names)
        if row.arm == names[0] or row.seed or row.step < 2
    ]
    figure = decay_rate.draw(decay_rate.arrange(rows, config()))
    (points,) = [at for key, at in marks(figure.axes[0]).items() if key[0] != "*"]
    assert list(points[0]) == [2]


QUADRATIC = {"name": "quadratic", "eigenvalues": [1.0], "noise": 0.0}


def test_a_run_on_a_quadratic_without_noise_has_the_figure(tmp_path):
    folder = arm_run.workdir(tmp_path, figures=["decay_rate"], task=QUADRATIC)
    assert [path.stem for path in figures.draw(folder)] == ["decay_rate"]
    assert figures.warnings(folder) == []


@pytest.mark.parametrize("changes", [{"name": "breast_cancer"}, {"noise": 0.1}])
def test_other_runs_are_told_why_they_have_none(changes, tmp_path):
    task = QUADRATIC | changes
    folder = arm_run.workdir(tmp_path, figures=["decay_rate"], task=task)
    assert figures.draw(folder) == []
    (sentence,) = figures.warnings(folder)
    assert sentence.startswith("decay_rate is not drawn: an error dies out for good")


def test_the_rows_of_theory_are_series_of_the_run():
    # `decay` takes what `tuning.series` makes
    (row, *_) = evaluations()
    held = theory.decay(tuning.series(row), STEP, config((0.5, 2.0)))
    assert (held.slowest, held.stiffest) == (STEP * 0.5, STEP * 2.0)
    assert held.seconds.mean == 2.0
