"""What arms reach stands over the number in which they differ."""

import math
import statistics

import numpy as np

from experiments import tuning
from experiments.figures import over_option
from tests.figures import arm_run
from tests.figures.arm_run import RATES, SEEDS
from tests.figures.legible import check_legible, legend, texts

COUNTS, PROTOCOLS = (8, 32, 128), ("k_async(1)", "rennala(8)")
NAMES = [f"{protocol} workers={count}" for count in COUNTS for protocol in PROTOCOLS]
WORKERS = {name: int(name.split("=")[1]) for name in NAMES}


def best_step(arm):
    """The first arm's is no other one's."""
    return RATES[0] if arm == NAMES[0] else RATES[1]


def seconds(arm, law, rate, seed):
    """Least at the best step; one seed of one arm never gets there."""
    if arm == NAMES[-1] and law == "none" and seed == 1:
        return math.inf
    best = 1000 / WORKERS[arm] * (1 + PROTOCOLS.index(arm.split()[0])) + seed
    return best * (1 + abs(math.log(rate / best_step(arm))))


def draw(names=NAMES, workers=WORKERS, laws=("none",), seconds=seconds, **keywords):
    rows = arm_run.rows(
        lambda *cell: 1.0, seconds, over=arm_run.cells(names=names, laws=laws)
    )
    curves = tuning.curves(rows, "seconds_to_target", select_by="seconds_to_target")
    options = {name: {"workers": count} for name, count in workers.items()}
    return over_option.draw(
        curves, options, option="workers", target="gradient norm of 0.1", **keywords
    )


def test_points_are_means_over_seeds_at_the_step_that_is_fastest():
    figure = draw()
    (axis,) = figure.axes
    for line, protocol in zip(axis.lines, PROTOCOLS, strict=True):
        assert list(line.get_xdata()) == list(COUNTS)
        expected = [
            statistics.fmean(
                seconds(name, "none", best_step(name), seed)
                for name in [f"{protocol} workers={count}"]
                for seed in SEEDS
            )
            for count in COUNTS
        ]
        expected = [value if math.isfinite(value) else math.nan for value in expected]
        np.testing.assert_allclose(line.get_ydata(), expected)
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    assert "How long to a gradient norm of 0.1?" in texts(figure)
    assert axis.get_xlabel() == "workers"
    assert axis.get_ylabel() == "time to the target\n(simulated s)"
    check_legible(figure)


def test_the_band_is_the_range_of_the_seeds():
    (axis,) = draw().axes
    corners = axis.collections[0].get_paths()[0].vertices
    for count in COUNTS:
        found = corners[corners[:, 0] == count, 1]
        name = f"{PROTOCOLS[0]} workers={count}"
        values = [seconds(name, "none", best_step(name), seed) for seed in SEEDS]
        assert (found.min(), found.max()) == (min(values), max(values))


def crosses(axis):
    return [
        marks.get_offsets()
        for marks in axis.collections
        if marks.get_offset_transform() == axis.get_xaxis_transform()
    ]


def test_what_some_seed_did_not_reach_is_a_cross_near_its_number_of_workers():
    figure = draw()
    reached, missed = crosses(figure.axes[0])
    assert len(reached) == 0
    ((x, y),) = missed
    assert 128 / 1.4 < x < 128 * 1.4 and 0.9 < y <= 1
    assert "not reached" in legend(figure)
    assert "not reached" not in legend(draw(NAMES[:4]))


def test_who_never_gets_there_leaves_the_axis_to_the_others():
    def never(arm, law, rate, seed):
        lost = "workers=8" in arm
        return math.inf if lost else seconds(arm, law, rate, seed)

    figure = draw(seconds=never)
    (axis,) = figure.axes
    assert axis.get_yscale() == "log"
    assert all(0 < tick < math.inf for tick in axis.get_yticks())
    check_legible(figure)
    nobody = draw(seconds=lambda *cell: math.inf)
    assert [len(marks) for marks in crosses(nobody.axes[0])] == [3, 3]
    check_legible(nobody)


def test_ticks_are_the_numbers_of_workers():
    figure = draw()
    (axis,) = figure.axes
    figure.draw_without_rendering()
    assert [text.get_text() for text in axis.get_xticklabels()] == ["8", "32", "128"]
    assert list(axis.get_xticks()) == list(COUNTS)


def test_laws_have_panels_and_protocols_colors():
    figure = draw(laws=("none", "capped"))
    assert [axis.get_title() for axis in figure.axes] == ["plain", "capped after"]
    for axis in figure.axes:
        assert [len(line.get_xdata()) for line in axis.lines] == [3, 3]
    plain, capped = ([line.get_color() for line in axis.lines] for axis in figure.axes)
    assert plain == capped and len(set(plain)) == 2
    assert legend(figure) == [*PROTOCOLS, "not reached", "range of seeds"]
    check_legible(figure)


def test_arms_that_differ_in_more_than_workers_are_told_apart():
    names = [
        f"hardsync() workers={p} speeds={s}" for s in ("equal", "sqrt") for p in (4, 8)
    ]
    workers = {name: 4 if "workers=4" in name else 8 for name in names}
    figure = draw(names, workers, seconds=lambda arm, law, rate, seed: 1.0 + rate)
    labels = legend(figure)[:2]
    assert labels == ["hardsync() speeds=equal", "hardsync() speeds=sqrt"]
    assert [list(line.get_xdata()) for line in figure.axes[0].lines] == [[4, 8]] * 2


def test_one_number_of_workers_is_a_column_of_points():
    names = NAMES[:2]
    figure = draw(names, {name: 8 for name in names})
    (axis,) = figure.axes
    assert [list(line.get_xdata()) for line in axis.lines] == [[8], [8]]
    bars = axis.collections[0].get_segments()
    values = [seconds(names[0], "none", best_step(names[0]), seed) for seed in SEEDS]
    np.testing.assert_allclose(bars, [[[8, min(values)], [8, max(values)]]])
    check_legible(figure)
