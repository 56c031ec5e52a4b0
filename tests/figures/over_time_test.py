"""Lines over time are the medians of the right cells, at the right places."""

import dataclasses
import itertools
import math
import statistics

import numpy as np
import pytest

from experiments import tuning
from experiments.figures import over_time
from tests.figures import arm_run
from tests.figures.arm_run import ARMS, LAWS, MOMENTS, RATES, SEEDS, STEPS
from tests.figures.legible import check_legible, legend, texts

AT = [STEPS * i // MOMENTS for i in range(MOMENTS + 1)]


def draw(rows=None, evaluations=None, metric="train_loss", **options):
    curves = tuning.curves(rows or arm_run.rows(), "train_loss")
    return over_time.draw(
        curves, evaluations or arm_run.evaluations(), metric, **options
    )


def plain(**options):
    over = arm_run.cells(laws=("none",), **options)
    return {
        "rows": arm_run.rows(over=over),
        "evaluations": arm_run.evaluations(over=over),
    }


def one_panel(**options):
    (axis,) = draw(**plain(), **options).axes
    return axis


def test_a_line_is_the_median_over_seeds_at_the_best_step_of_its_arm():
    axis = one_panel()
    assert len(axis.lines) == len(ARMS)
    assert len({arm_run.best(arm, "none") for arm in ARMS}) == len(ARMS)
    for line, arm in zip(axis.lines, ARMS, strict=True):
        ends = [arm_run.loss(arm, "none", arm_run.best(arm, "none"), s) for s in SEEDS]
        expected = [arm_run.on_the_way(statistics.median(ends), step) for step in AT]
        np.testing.assert_allclose(line.get_ydata(), expected)
        seconds = [
            statistics.median(arm_run.at(arm, s, step)[0] for s in SEEDS) for step in AT
        ]
        np.testing.assert_allclose(line.get_xdata(), seconds)


def test_the_band_is_the_range_of_the_seeds():
    axis = one_panel()
    for band, arm in zip(axis.collections, ARMS, strict=True):
        corners = band.get_paths()[0].vertices
        last = arm_run.at(arm, 1, STEPS)[0]
        found = corners[np.isclose(corners[:, 0], last), 1]
        ends = [arm_run.loss(arm, "none", arm_run.best(arm, "none"), s) for s in SEEDS]
        assert (found.min(), found.max()) == pytest.approx((min(ends), max(ends)))


@pytest.mark.parametrize(
    ("against", "label", "place"),
    [
        ("seconds", "simulated time (s)", lambda arm: arm_run.at(arm, 1, STEPS)[0]),
        ("step", "updates", lambda arm: STEPS),
        ("examples", "examples", lambda arm: arm_run.at(arm, 1, STEPS)[1]),
    ],
)
def test_each_axis_says_what_it_counts(against, label, place):
    axis = one_panel(against=against)
    assert axis.get_xlabel() == label
    ends = [line.get_xdata()[-1] for line in axis.lines]
    assert ends == pytest.approx([place(arm) for arm in ARMS])


def test_an_accuracy_is_drawn_as_an_error():
    accuracy, error = one_panel(), one_panel(metric="test_accuracy")
    assert error.get_ylabel() == "test error (share)"
    for first, second in zip(accuracy.lines, error.lines, strict=True):
        np.testing.assert_allclose(second.get_ydata(), first.get_ydata() / 3)


def test_a_loss_and_a_gap_keep_their_unit():
    assert one_panel(unit="nats").get_ylabel() == "training loss (nats)"
    axis = one_panel(metric="gap", unit="nats")
    assert axis.get_ylabel() == "test loss - training loss (nats)"
    for line in axis.lines:
        np.testing.assert_allclose(line.get_ydata(), 0.1)
    assert one_panel(metric="gradient_norm").get_ylabel() == "gradient norm"


def test_the_legend_has_the_arms_in_the_order_of_the_config():
    figure = draw(**plain())
    assert legend(figure) == [*ARMS, "range of seeds"]
    colors = [line.get_color() for line in figure.axes[0].lines]
    assert len(set(colors)) == len(ARMS)
    check_legible(figure)


def test_arms_and_laws_that_fit_into_one_panel_share_it():
    figure = draw()
    (axis,) = figure.axes
    assert len(axis.lines) == len(ARMS) * len(LAWS)
    assert legend(figure)[:2] == [f"{ARMS[0]}, plain", f"{ARMS[0]}, inverse after"]


def many(names, laws):
    """A grid in which the best step and law are known."""

    def loss(arm, law, rate, seed):
        wanted = laws[names.index(arm) % len(laws)]
        return 0.5 + 0.1 * (law != wanted) + abs(math.log10(rate / 0.1))

    over = arm_run.cells(names=names, laws=laws)
    at = {"at": lambda arm, seed, step: (step, step)}
    return {
        "rows": arm_run.rows(loss, over=over),
        "evaluations": arm_run.evaluations(loss, over=over, **at),
    }


def test_a_law_has_a_panel_of_its_own_where_all_do_not_fit_into_one():
    names = [f"ssp({bound})" for bound in range(4)]
    figure = draw(**many(names, ("none", "inverse", "hinge")))
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["plain", "inverse after", "hinge after"]
    assert [len(axis.lines) for axis in figure.axes] == [4, 4, 4]
    assert legend(figure) == [*names, "range of seeds"]
    check_legible(figure)


def test_many_arms_are_drawn_at_their_best_law_before_the_others_in_grey():
    names = [f"{p}({k})" for k in (1, 2, 3, 4) for p in ("k_sync", "k_async")]
    figure = draw(**many(names, ("none", "inverse")))
    assert [axis.get_title() for axis in figure.axes] == ["k_sync", "k_async"]
    for axis in figure.axes:
        gray = [line for line in axis.lines if line.get_color() == "0.82"]
        assert len(gray) == len(axis.lines) - len(gray) == 4
        for line in axis.lines:
            assert line.get_ydata()[-1] == pytest.approx(0.5)  # its best law and step
    assert legend(figure) == [
        "(1)",
        "(2)",
        "(3)",
        "(4)",
        "other arms",
        "range of seeds",
    ]
    assert any("each at its best setting" in text for text in texts(figure))
    check_legible(figure)


def test_one_arm_has_a_line_for_each_law():
    laws = (
        "none",
        "inverse",
        "polynomial",
        "hinge",
        "exponential",
        "capped",
        "by_mean",
    )
    figure = draw(**many(["trace"], laws))
    (axis,) = figure.axes
    assert len(axis.lines) == len(laws)
    assert legend(figure)[:2] == ["plain", "inverse after"]


def test_large_numbers_have_room_in_narrow_panels():
    names = [f"{p}({k})" for k in (1, 2, 3, 4) for p in ("k_sync", "k_async")]
    given = many(names, ("none",))
    given["evaluations"] = [
        dataclasses.replace(own, examples=27_000 * own.step // STEPS)
        for own in given["evaluations"]
    ]
    figure = draw(**given, against="examples")
    assert len(figure.axes) == 2 and figure.axes[0].lines[0].get_xdata()[-1] == 27_000
    check_legible(figure)


def test_an_arm_that_always_diverges_is_named_and_not_drawn():
    def loss(arm, law, rate, seed):
        lost = arm == ARMS[1] and seed == 1
        return math.nan if lost else arm_run.loss(arm, law, rate, seed)

    over = arm_run.cells(laws=("none",))
    figure = draw(arm_run.rows(loss, over=over), arm_run.evaluations(over=over))
    (axis,) = figure.axes
    assert len(axis.lines) == len(ARMS) - 1
    assert legend(figure)[:3] == [ARMS[0], f"{ARMS[1]} (diverged)", ARMS[2]]


@pytest.mark.parametrize(("ratio", "scale"), [(2.5, "linear"), (3.5, "log")])
def test_an_axis_is_logarithmic_where_arms_end_far_apart(ratio, scale):
    def at(arm, seed, step):
        return step * (ratio if arm == ARMS[0] else 1.0), step

    given = plain()
    given["evaluations"] = arm_run.evaluations(
        at=at, over=arm_run.cells(laws=("none",))
    )
    figure = draw(**given)
    (axis,) = figure.axes
    assert axis.get_xscale() == scale
    starts = {line.get_xdata()[0] > 0 for line in axis.lines}
    assert starts == {scale == "log"}  # where 0 has no place
    assert len(axis.lines[0].get_xdata()) == MOMENTS + (scale == "linear")
    check_legible(figure)


def test_a_wide_metric_has_a_logarithmic_axis():
    def loss(arm, law, rate, seed):
        return 0.01 * arm_run.loss(arm, law, rate, seed)

    over = arm_run.cells(laws=("none",))
    wide = {"rows": arm_run.rows(loss, over=over)}
    wide["evaluations"] = arm_run.evaluations(loss, over=over)
    assert draw(**wide).axes[0].get_yscale() == "log"
    assert one_panel().get_yscale() == "linear"


def test_the_target_is_a_line_where_there_is_one():
    axis = one_panel(metric="test_accuracy", target=0.8)
    heights = [line.get_ydata() for line in axis.lines if len(line.get_ydata()) == 2]
    np.testing.assert_allclose(heights, [[0.2, 0.2]])
    assert "target" in legend(axis.figure)
    assert "target" not in legend(one_panel().figure)


def test_the_baseline_that_each_placement_runs_anew_counts_once():
    over = arm_run.cells(laws=("none",))

    def worse(*cell):
        return 1.0 + arm_run.loss(*cell)

    rows = arm_run.rows(over=over) + arm_run.rows(worse, over=over, placement="before")
    evaluations = arm_run.evaluations(over=over)
    evaluations += arm_run.evaluations(worse, over=over, placement="before")
    (axis,) = draw(rows, evaluations).axes
    for line, alone in zip(axis.lines, one_panel().lines, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), alone.get_ydata())
    bands = zip(axis.collections, one_panel().collections, strict=True)
    for band, alone in bands:
        np.testing.assert_array_equal(
            band.get_paths()[0].vertices, alone.get_paths()[0].vertices
        )


def test_curves_of_another_run_are_refused():
    others = arm_run.evaluations(over=arm_run.cells(rates=[2 * rate for rate in RATES]))
    with pytest.raises(ValueError, match=r"no rows of 'n_softsync\(2\)'.*another run"):
        draw(evaluations=others)


def test_seeds_are_compared_at_equal_numbers_of_updates():
    given = plain()
    # a run that was cut short under one seed
    given["evaluations"] = [
        e for e in given["evaluations"] if e.seed != 1 or e.step < STEPS
    ]
    (axis,) = draw(**given, against="step").axes
    assert [list(line.get_xdata()) for line in axis.lines] == [AT[:-1]] * len(ARMS)


def test_warnings_stand_below():
    over = list(itertools.product(ARMS, ("none",), (0.1,), SEEDS))
    figure = draw(arm_run.rows(over=over), arm_run.evaluations(over=over))
    shown = " ".join(" ".join(texts(figure)).split())
    assert "only the step size 0.1 was run" in shown
    check_legible(figure)
