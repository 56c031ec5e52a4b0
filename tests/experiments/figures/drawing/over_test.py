"""Figures over an axis of the grid draw the numbers of the tables."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from experiments import figures
from experiments.figures import tables
from experiments.results import analysis
from experiments.results.selection import Selection
from tests.experiments.figures.legible import check_legible, legend, texts
from tests.experiments.figures.runs import DELAYS, RATES, SEEDS, limit, made, valley

OPTIMIZERS = ("sgd", "adam", "lion")


def lines(axis, dashes="-"):
    return [
        line
        for line in axis.lines
        if line.get_linestyle() == dashes and len(line.get_xdata()) > 1
    ]


def measured(axis):
    """The lines that have markers only: points that no line joins."""
    return [
        line
        for line in axis.lines
        if line.get_marker() in ("o", "s", "D", "^", "v")
        and line.get_ls() == "None"
        and len(line.get_xdata()) > 1
    ]


def crosses(axis):
    """{color: places} of the crosses in the strip above, for values off the scale."""
    (strip,) = axis.child_axes
    return {to_hex(line.get_color()): list(line.get_xdata()) for line in strip.lines}


def best(run, delay, metric, **where):
    """The mean over seeds at the step size with the least mean loss."""
    frame = analysis.where(run.results, delay=delay, **where)
    losses = frame.train_loss + 1e9 * frame.diverged
    rate = losses.groupby(frame.learning_rate).mean().idxmin()
    return analysis.where(frame, learning_rate=rate)[metric].mean()


def test_solid_is_the_step_tuned_anew_and_dashed_the_first_one(tmp_path):
    run = made(tmp_path, learning_rate=RATES[:3], delay=DELAYS)
    (axis,) = figures.over("delay", "test_error").draw(run).axes
    (solid,), (dashed,) = lines(axis), lines(axis, "--")
    np.testing.assert_array_equal(solid.get_xdata(), DELAYS)
    np.testing.assert_allclose(
        solid.get_ydata(), [best(run, delay, "test_error") for delay in DELAYS]
    )
    first = analysis.where(run.results, learning_rate=0.3)  # the best at 0, of three
    assert valley(0.3, 0, 0) == min(valley(rate, 0, 0) for rate in RATES[:3])
    means = first[first.diverged == 0].groupby("delay").test_error.mean()
    np.testing.assert_allclose(dashed.get_ydata()[: len(means)], means)
    assert axis.get_xlabel() == "delay (updates)"
    assert axis.get_ylabel() == "test error (share)"


def test_whole_numbers_have_whole_ticks(tmp_path):
    run = made(tmp_path, learning_rate=RATES[:3], delay=(2, 8))
    (axis,) = figures.over("delay", "test_error").draw(run).axes
    assert {float(tick).is_integer() for tick in axis.get_xticks()} == {True}


def test_dashed_may_be_the_step_that_is_best_for_one_series_alone(tmp_path):
    """The law "b" is best at a smaller step size, but is drawn at the step of "a"."""

    def loss(learning_rate, delay, law, seed):
        return valley(learning_rate * (10 if law == "b" else 1), delay, seed)

    run = made(tmp_path, loss, learning_rate=RATES[:4], delay=(0, 1), law=("a", "b"))
    kept = best(run, 0, "learning_rate", law="a")
    assert kept > best(run, 0, "learning_rate", law="b")
    drawn = figures.over("delay", "train_loss", fixed={"law": "a"}).draw(run)
    (axis,) = drawn.axes
    assert "best step size of delay=0, a" in legend(drawn)
    for law, dashed in zip("ab", lines(axis, "--"), strict=True):
        rows = analysis.where(run.results, law=law, learning_rate=kept)
        means = rows[rows.diverged == 0].groupby("delay").train_loss.mean()
        shown = dashed.get_ydata()[np.isfinite(dashed.get_ydata())]
        np.testing.assert_allclose(shown, means)


def test_the_band_is_the_interval(tmp_path):
    run = made(tmp_path)
    figure = figures.over("delay", "train_loss", fixed=False).draw(run)
    (axis,) = figure.axes
    rows = run.best
    spread = analysis.spread(rows, "train_loss", ["delay"]).set_index("delay")
    corners = axis.collections[0].get_paths()[0].vertices
    for delay in DELAYS:
        ends = corners[corners[:, 0] == delay, 1]
        interval = spread.loc[delay]
        assert (ends.min(), ends.max()) == pytest.approx((interval.low, interval.high))
    assert "95 % interval of the mean" in legend(figure)


def test_what_diverged_is_a_cross_outside_of_the_scale(tmp_path):
    figure = figures.over("delay", "train_loss").draw(made(tmp_path))
    (axis,) = figure.axes
    (dashed,) = lines(axis, "--")
    gaps = [limit(delay) < 1.0 for delay in DELAYS]  # the best without delay is 1
    assert any(gaps)
    np.testing.assert_array_equal(np.isnan(dashed.get_ydata()), gaps)
    lost = [delay for delay, gone in zip(DELAYS, gaps, strict=True) if gone]
    assert list(crosses(axis).values()) == [lost]
    figure.draw_without_rendering()
    (strip,) = axis.child_axes
    assert strip.get_window_extent().y0 > axis.get_window_extent().y1
    assert "diverged" in [text.get_text() for text in strip.get_yticklabels()]
    check_legible(figure)


@pytest.mark.parametrize("draw", [figures.over, figures.best_step])
def test_what_ended_higher_and_did_not_diverge_is_not_said_to(draw, tmp_path):
    run = made(tmp_path, lambda **cell: 5.0 + cell["learning_rate"])
    higher = (run.results.delay == 4).astype(int)
    for diverged, word in ((0, "ended higher"), (higher, "diverged")):
        fates = run.results.assign(diverged=diverged, ended_higher=higher)
        figure = draw("delay").draw(dataclasses.replace(run, results=fates))
        (strip,) = figure.axes[0].child_axes
        assert [text.get_text() for text in strip.get_yticklabels()] == [word]


@pytest.mark.parametrize(
    "figure",
    [
        figures.over("delay", "test_error"),
        figures.over("delay", figures.TimeTo("test_loss", 0.0)),
        figures.best_step("delay"),
        figures.curves("train_loss"),
        figures.bars("test_error"),
        figures.over("delay", color="learning_rate", theory=lambda delay: delay + 1.0),
        figures.over("delay", figures.DecayRate(), name="decay_rate"),
    ],
    ids=lambda figure: figure.name,
)
def test_where_everything_diverged_a_figure_says_so(figure, tmp_path):
    run = made(tmp_path, lambda **cell: math.nan)
    drawn = figure.draw(run)
    check_legible(drawn)
    words = " ".join(texts(drawn))
    assert "diverged" in words or "not reached" in words or figure.name == "decay_rate"


def test_one_seed_has_no_interval(tmp_path):
    run = made(tmp_path, seeds=(0,))
    for figure in (figures.over("delay", "train_loss"), figures.bars("train_loss")):
        assert "95 % interval of the mean" not in legend(figure.draw(run))


def several(learning_rate, optimizer, delay, seed):
    return valley(learning_rate, delay, seed) + OPTIMIZERS.index(optimizer)


@pytest.fixture
def optimizers(tmp_path):
    """A run of several optimizers."""
    grid = {"learning_rate": RATES, "optimizer": OPTIMIZERS, "delay": DELAYS}
    return made(tmp_path, several, **grid)


def test_series_are_named_after_what_tells_them_apart(optimizers):
    figure = figures.over("delay", "train_loss", fixed=False).draw(optimizers)
    assert legend(figure)[:3] == list(OPTIMIZERS)
    for line, name in zip(lines(figure.axes[0]), OPTIMIZERS, strict=True):
        expected = [best(optimizers, d, "train_loss", optimizer=name) for d in DELAYS]
        np.testing.assert_allclose(line.get_ydata(), expected)


def test_a_panel_shows_the_series_of_its_value(optimizers):
    run = optimizers
    figure = figures.over("delay", "train_loss", panels="optimizer").draw(run)
    assert [axis.get_title() for axis in figure.axes] == list(OPTIMIZERS)
    with pytest.raises(ValueError, match="'law' distinguishes no series"):
        figures.over("delay", "train_loss", panels="law").draw(run)
    draft = figures.over("delay", "train_loss", only={"optimizer": ("adam", "lion")})
    assert legend(draft.draw(run))[:2] == ["adam", "lion"]


@pytest.mark.parametrize("count", [12, 20])
def test_no_two_series_share_a_color(count, tmp_path):
    names = tuple(f"method{i}" for i in range(count))

    def loss(learning_rate, method, delay, seed):
        return 1.0 + names.index(method)

    grid = {"learning_rate": (0.1,), "method": names, "delay": (0, 1)}
    run = made(tmp_path, loss, seeds=(0,), **grid)
    figure = figures.over("delay", "train_loss", fixed=False).draw(run)
    shown = [line for axis in figure.axes for line in lines(axis)]
    assert len(shown) == count
    assert len({to_hex(line.get_color()) for line in shown}) == count


def test_more_series_than_a_panel_holds_are_spread(tmp_path):
    def loss(learning_rate, method, workers, delay, seed):
        return 1.0

    grid = {"learning_rate": (0.1,), "method": ("a", "b"), "workers": (1, 2, 4, 8)}
    run = made(tmp_path, loss, **grid, delay=DELAYS)
    figure = figures.over("delay", "train_loss").draw(run)
    assert [axis.get_title() for axis in figure.axes] == ["a", "b"]
    assert legend(figure)[:4] == [f"workers={count}" for count in (1, 2, 4, 8)]
    check_legible(figure)


def test_a_number_that_follows_from_x_is_no_series(tmp_path):
    run = made(tmp_path)
    results = run.results
    results.insert(0, "batch_size", 32 // (1 + results.delay))
    run = dataclasses.replace(run, results=results)
    (axis,) = figures.over("delay", "train_loss", fixed=False).draw(run).axes
    assert len(lines(axis)) == 1


def test_an_arm_without_x_is_a_horizontal_line(tmp_path):
    run = made(tmp_path)
    baseline = run.results[run.results.delay == 0].assign(delay=np.nan, train_loss=0.5)
    results = pd.concat([run.results, baseline], ignore_index=True)
    results.insert(0, "method", np.where(results.delay.isna(), "none", "late"))
    run = dataclasses.replace(run, results=results)
    figure = figures.over("delay", "train_loss", fixed=False).draw(run)
    level = [
        line.get_ydata()[0]
        for line in figure.axes[0].lines
        if list(line.get_xdata()) == [0, 1]
    ]
    assert level == [0.5]
    assert legend(figure)[:2] == ["late", "no method"]


def test_errors_that_crowd_take_a_logarithmic_axis(tmp_path):
    for factor, scale in ((3.0, "linear"), (5.0, "log")):

        def loss(delay, seed, factor=factor):
            return -math.log(1 - 0.01 * factor ** (delay / 4))

        run = made(tmp_path, loss, delay=DELAYS)
        (axis,) = figures.over("delay", "test_error").draw(run).axes
        assert axis.get_yscale() == scale
        assert axis.get_xscale() == "linear"
    run = made(tmp_path, lambda delay, seed: 1.0, delay=(0, 1, 32))
    assert figures.over("delay").draw(run).axes[0].get_xscale() == "symlog"


@pytest.mark.parametrize("end", [1.0, math.nan])
def test_a_time_to_a_target_is_drawn_whatever_became_of_the_run_then(tmp_path, end):
    def curve(update, cell, seed):
        return 10.0 - update / (1 + cell["delay"])

    run = made(tmp_path, lambda delay, seed: end, delay=DELAYS, curve=curve)
    figure = figures.over("delay", figures.TimeTo("train_loss", 5.0)).draw(run)
    (axis,) = figure.axes
    (line,) = lines(axis)
    # two updates a second; 5 (1 + delay) updates lower the loss by 5
    np.testing.assert_allclose(line.get_ydata(), [5 / 2, 10 / 2, 25 / 2])
    assert axis.get_ylabel().replace("\n", " ") == "time to training loss 5 (s)"
    assert not axis.child_axes  # no crosses
    figure = figures.over("delay", figures.TimeTo("train_loss", 1.5)).draw(run)
    assert list(crosses(figure.axes[0]).values()) == [[4]]


def test_the_time_that_is_drawn_may_also_be_what_is_tuned(tmp_path):
    def curve(update, cell, seed):
        return 10.0 - update * cell["learning_rate"] / (1 + cell["delay"])

    run = made(
        tmp_path,
        lambda learning_rate, delay, seed: 1.0,
        curve=curve,
        learning_rate=(0.25, 0.5, 1.0),
        delay=DELAYS,
    )
    time = figures.TimeTo("train_loss", 5.0)
    run = dataclasses.replace(run, selection=run.selection._replace(by=time))
    (axis,) = figures.over("delay", time, fixed=False).draw(run).axes
    (line,) = lines(axis)
    np.testing.assert_allclose(line.get_ydata(), [5 / 2, 10 / 2, 25 / 2])  # at rate 1


def test_a_title_can_state_the_finding(tmp_path):
    run = made(tmp_path)
    assert "Late is bad" in texts(figures.over("delay", title="Late is bad").draw(run))
    means = run.best.groupby("delay").test_error.mean()
    ends = f"{means[0]:.3g} to {means[4]:.3g}"
    result = f"Test error rises from {ends} over delay 0 to 4"
    assert result in texts(figures.over("delay").draw(run))
    both = texts(figures.over("delay", title="Why?").draw(run))
    assert {"Why?", result} <= {*both}
    # with one seed, no finding says that the error rises
    one = figures.over("delay").draw(made(tmp_path, seeds=(0,)))
    assert "How does the test error change with delay?" in texts(one)


def test_steps_of_three_decades_have_ticks_apart_in_each_of_two_panels(tmp_path):
    steps = (0.003, 0.005, 0.01, 0.015, 0.03, 0.05, 0.1, 0.15, 0.3, 1.0, 3.0)

    def loss(learning_rate, law, seed):
        return 1.0 + learning_rate

    run = made(tmp_path, loss, learning_rate=steps, law=("a", "b"))
    drawn = figures.over("learning_rate", "train_loss", fixed=False, panels="law")
    figure = drawn.draw(run)
    check_legible(figure)
    shown = [float(tick.get_text()) for tick in figure.axes[0].get_xticklabels()]
    assert len(shown) >= 4 and set(shown) <= set(steps)


def test_an_interval_does_not_stretch_a_logarithmic_axis(tmp_path):
    """The interval of 2 - 1.9, 2 and 2 + 1.9 begins at 0.19."""

    def loss(learning_rate, delay, seed):
        return {0: 100.0, 1: 2.0 + 1.9 * seed}[delay]

    run = made(tmp_path, loss, seeds=(-1, 0, 1), learning_rate=(0.1,), delay=(0, 1))
    (axis,) = figures.over("delay", "train_loss", fixed=False).draw(run).axes
    low, high = axis.get_ylim()
    assert axis.get_yscale() == "log"
    assert low == pytest.approx(2.0 / 3.0) and high > 100.0


def test_the_best_step_and_the_limit_are_drawn_and_edges_ringed(tmp_path):
    figure = figures.best_step("delay", limit=limit).draw(made(tmp_path))
    (axis,) = figure.axes
    (line,), (bound,) = lines(axis), lines(axis, ":")
    means = [{rate: valley(rate, delay, 1) for rate in RATES} for delay in DELAYS]
    expected = [min((v, r) for r, v in losses.items() if v == v)[1] for losses in means]
    np.testing.assert_allclose(line.get_ydata(), expected)
    delays = bound.get_xdata()
    assert {*DELAYS} <= {*delays}
    np.testing.assert_allclose(bound.get_ydata(), [limit(delay) for delay in delays])
    assert "on the grid's edge" not in legend(figure)
    run = made(tmp_path, lambda learning_rate, delay, seed: learning_rate)
    assert "on the grid's edge" in legend(figures.best_step("delay").draw(run))
    sentence = "the best step size is the smallest one tried, 0.03."
    assert sentence in texts(figures.over("delay").draw(run))


def test_a_best_momentum_of_0_is_drawn_and_not_ringed(tmp_path):
    """The best momentum is 0 at a delay of 4: nothing smaller can be tried."""

    def loss(momentum, delay, seed):
        return 1.0 + (momentum - {0: 0.9, 1: 0.5, 4: 0.0}[delay]) ** 2

    momenta = (0.0, 0.5, 0.9, 0.99)
    run = made(
        *(tmp_path, loss),
        **dict(info={"tuned": ["momentum"]}, momentum=momenta, delay=DELAYS),
    )
    figure = figures.best_step("delay", "momentum").draw(run)
    (axis,) = figure.axes
    (line,) = lines(axis)
    low, high = axis.get_ylim()
    assert list(line.get_ydata()) == [0.9, 0.5, 0.0] and low < 0.0 < high
    assert "on the grid's edge" not in legend(figure)


@pytest.mark.parametrize("setting", ["optimizer", "largest"])
def test_an_end_is_of_the_values_that_the_series_tried(setting, tmp_path):
    """Both are best at their largest step size; "sgd" has tried larger ones."""
    tried = {"sgd": (0.1, 0.3, 1.0), "adam": (0.001, 0.01, 0.1)}

    def loss(learning_rate, seed, **settings):
        return 2.0 - learning_rate / max(tried[settings[setting]])

    rates = sorted({*tried["sgd"], *tried["adam"]})
    run = made(tmp_path, loss, learning_rate=rates, **{setting: tuple(tried)})
    mask = [
        rate in tried[name]
        for rate, name in zip(
            run.results.learning_rate, run.results[setting], strict=True
        )
    ]
    run = dataclasses.replace(run, results=run.results[mask])
    shown = texts(figures.over(setting, "train_loss", fixed=False).draw(run))
    for end in (0.1, 1.0):
        sentence = f"the best step size is the largest one tried, {end:g}."
        assert any(sentence in text for text in shown), (end, shown)
    assert not any("smallest one tried" in text for text in shown)


def test_no_name_is_said_to_be_at_both_ends(tmp_path):
    """The smallest step size is best, except with a delay of 4 and law a."""

    def loss(learning_rate, delay, law, seed):
        rises = delay == 0 or law == "b"
        return 2.0 + (learning_rate if rises else -learning_rate)

    run = made(
        *(tmp_path, loss),
        **dict(learning_rate=RATES[:3], delay=(0, 4), law=("a", "b")),
    )
    chosen = tables.choose(run, "test_error", None, "delay")
    for panels in (None, "law"):
        named = tables.name(chosen.best, ["law"], panels)
        b = "delay=0, b; delay=4, b" if panels else "b"
        assert tables.edge_notes(chosen, named.label) == [
            f"delay=0, a; {b}: the best step size is the smallest one tried, 0.03.",
            "delay=4, a: the best step size is the largest one tried, 0.3.",
        ]


def test_an_optimum_at_a_limit_is_noted_and_no_other_optimum_is_an_end(tmp_path):
    """Three step sizes are drawn, as with `also_at`; the search tried others, too."""
    run = made(tmp_path, learning_rate=RATES[:3], delay=(0, 4))
    rows = [(0, RATES[0], "at the limit of learning_rate"), (4, RATES[2], "found")]
    optima = pd.DataFrame(rows, columns=["delay", "learning_rate", "why"])
    optima = optima.assign(found=True, score=0.0)
    run = dataclasses.replace(
        run, selection=Selection(("learning_rate",), optima=optima)
    )
    chosen = tables.choose(run, "test_error", None, "delay")
    note = f"the best step size is at its limit, {RATES[0]:g}."
    named = tables.name(chosen.best, ["delay"])
    assert tables.edge_notes(chosen, named.label) == [f"delay=0: {note}"]
    shown = texts(figures.over("delay", "train_loss", fixed=False).draw(run))
    assert any(note in one.replace("\n", " ") for one in shown), shown


def test_where_one_value_was_tried_it_is_no_end(tmp_path):
    run = made(tmp_path, learning_rate=(0.1,), delay=DELAYS)
    assert not any("one tried" in t for t in texts(figures.over("delay").draw(run)))


def test_names_are_rows_with_points_above_each_other_and_no_lines(optimizers):
    figure = figures.over("optimizer", "train_loss", color="delay").draw(optimizers)
    assert legend(figure)[:3] == [f"delay={delay}" for delay in DELAYS]
    (axis,) = figure.axes
    assert [text.get_text() for text in axis.get_yticklabels()] == list(OPTIMIZERS)
    points = sorted(
        (round(float(line.get_ydata()[0]), 3), float(line.get_xdata()[0]))
        for line in axis.lines
        if line.get_marker() in "osD" and np.isfinite(line.get_xdata()[0])
    )
    expected = [
        best(optimizers, delay, "train_loss", optimizer=name)
        for name in OPTIMIZERS
        for delay in DELAYS
    ]
    np.testing.assert_allclose([value for _, value in points], expected)
    assert [round(at) for at, _ in points] == [0] * 3 + [1] * 3 + [2] * 3
    assert len({at for at, _ in points}) == len(OPTIMIZERS) * len(DELAYS)
    check_legible(figure)


def test_theory_is_a_thin_line_of_its_formula_or_table(tmp_path):
    run = made(tmp_path)
    for theory in (lambda delay: 3.0 * delay, {delay: 3.0 * delay for delay in DELAYS}):
        drawn = figures.over("delay", "train_loss", fixed=False, theory=theory)
        (axis,) = drawn.draw(run).axes
        (line,) = lines(axis, ":")
        # a formula is also known between the delays that were run
        delays = range(DELAYS[-1] + 1) if callable(theory) else DELAYS
        assert list(line.get_xdata()) == list(delays)
        np.testing.assert_allclose(line.get_ydata(), [3.0 * delay for delay in delays])
        assert line.get_linewidth() == 1.2 and len(measured(axis)) == 1


def test_the_largest_stable_step_is_of_all_steps_and_each_law_has_its_limit(tmp_path):
    laws = {"constant": 1.0, "wide": 0.5}

    def by_law(delay, law):
        return laws[law] * limit(delay)

    def loss(learning_rate, law, delay, seed):
        return 1.0 if learning_rate < by_law(delay, law) else math.nan

    grid = {"learning_rate": RATES, "law": tuple(laws), "delay": DELAYS}
    largest = figures.LargestStable("learning_rate")
    run = made(tmp_path, loss, **grid)
    figure = figures.over("delay", largest, theory=by_law).draw(run)
    (axis,) = figure.axes
    for law, points, line in zip(laws, measured(axis), lines(axis, ":"), strict=True):
        delays = line.get_xdata()
        np.testing.assert_allclose(line.get_ydata(), [by_law(d, law) for d in delays])
        below = [max(r for r in RATES if r < by_law(d, law)) for d in DELAYS]
        np.testing.assert_allclose(points.get_ydata(), below)
    assert axis.get_ylabel() == "largest stable step size"
    check_legible(figure)


def test_noise_floors_are_means_beside_theory(tmp_path):
    def floor(learning_rate, delay):
        stable = learning_rate < limit(delay)
        return learning_rate * (1 + delay) if stable else math.inf

    def loss(learning_rate, delay, seed):
        result = floor(learning_rate, delay)
        return result * (1 + 0.1 * seed) if math.isfinite(result) else math.nan

    run = made(tmp_path, loss)
    asked = {"color": "learning_rate", "theory": floor}
    figure = figures.over("delay", "train_loss", **asked).draw(run)
    (floors,) = figure.axes
    points, theories = measured(floors), lines(floors, ":")
    for drawn, line, rate in zip(points, theories, RATES, strict=True):
        expected = [floor(rate, delay) * 1.1 for delay in DELAYS]
        shown = np.where(np.isfinite(expected), expected, math.nan)
        np.testing.assert_allclose(drawn.get_ydata(), shown)
        whole = range(DELAYS[-1] + 1)
        finite = [floor(rate, d) if rate < limit(d) else math.nan for d in whole]
        np.testing.assert_allclose(line.get_ydata(), finite)
    assert legend(figure)[0] == f"step={RATES[0]}"
    check_legible(figure)


WORKERS = (1, 2, 4, 8, 16)


def decaying(tmp_path, rate):
    def curve(update, cell, seed):
        return math.exp(-2 * rate(cell["workers"]) * (1 + 0.1 * seed) * update / 2)

    return made(tmp_path, lambda workers, seed: 0.1, curve=curve, workers=WORKERS)


def rate(workers):
    """A rate of decay that is the largest with 4 workers."""
    return 0.01 * workers * math.exp(-workers / 4)


def test_rates_are_slopes_of_the_curves_and_a_star_is_the_fastest(tmp_path):
    figure = figures.over("workers", figures.DecayRate(), theory=rate).draw(
        decaying(tmp_path, rate)
    )
    (axis,) = figure.axes
    line, star, points = (drawn for drawn in axis.lines if len(drawn.get_xdata()))
    np.testing.assert_array_equal(points.get_xdata(), WORKERS)
    mean = np.mean([1 + 0.1 * seed for seed in SEEDS])
    expected = [rate(workers) * mean for workers in WORKERS]
    np.testing.assert_allclose(points.get_ydata(), expected, rtol=1e-6)
    np.testing.assert_allclose(line.get_ydata(), [rate(w) for w in line.get_xdata()])
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (4, rate(4))
    label = axis.get_ylabel().replace("\n", " ")
    assert label == "rate of decay (1 / simulated s), below 0 the error grows"
    assert "best in theory" in legend(figure)
    check_legible(figure)


def test_a_line_at_zero_parts_errors_that_grow_and_an_end_is_no_star(tmp_path):
    run = decaying(tmp_path, lambda workers: 0.05 - 0.01 * workers)
    drawn = figures.over(
        "workers", figures.DecayRate(), theory=lambda workers: 1.0 / workers
    )
    (axis,) = drawn.draw(run).axes
    (zero,) = (line for line in axis.lines if list(line.get_ydata()) == [0.0, 0.0])
    assert list(zero.get_xdata()) == [0, 1]  # from one side of the panel to the other
    assert not [line for line in axis.lines if line.get_marker() == "*"]


def test_the_first_panel_of_a_row_alone_has_a_label(tmp_path):
    run = made(tmp_path, learning_rate=RATES[:3], delay=DELAYS, rule=("a", "b"))
    first, second = figures.over("delay", "test_error", panels="rule").draw(run).axes
    assert first.get_ylabel() == "test error (share)"
    assert second.get_ylabel() == ""
