"""Figures show what the records say, and all of it is legible."""

import csv
import itertools
import json
import math
import struct
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgba
from matplotlib.text import Text

from experiments import figures, results, tuning
from experiments.figures import hero, loss_curves, over_delay, stability_map
from experiments.figures.run import load

RATES, DELAYS, SEEDS = (0.03, 0.1, 0.3, 1.0, 3.0), (0, 1, 4), (0, 1, 2)
SHARPNESS, OPTIMUM = 1.5, 0.05


def limit(delay):
    """The closed form, term by term."""
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1))) / SHARPNESS


def record(optimizer, rate, delay, seed, train_loss, *, test_loss=None, **changes):
    diverged = int(math.isnan(train_loss))
    return {
        "task": "breast_cancer",
        "optimizer": optimizer,
        "learning_rate": rate,
        "delay_law": "constant",
        "delay": delay,
        "modulation": "none",
        "placement": "after",
        "compensation": "none",
        "strength": 0.0,
        "seed": seed,
        "steps": 600,
        "diverged": diverged,
        "diverged_step": 17 if diverged else -1,
        "train_loss": train_loss,
        "test_loss": train_loss + 0.1 if test_loss is None else test_loss,
        "train_accuracy": math.exp(-train_loss),
        "test_accuracy": math.exp(-train_loss) / 2,
        "staleness_mean": delay,
        "staleness_p99": delay,
        "staleness_max": delay,
        "clipped": 0.0,
        "dropped": 0.0,
    } | changes


def valley(rate, delay, seed):
    """Best at a step that shrinks with the delay; diverged beyond the limit."""
    if rate > limit(delay):
        return math.nan
    return 0.1 + 0.02 * delay + 0.01 * seed + math.log(rate * (1 + delay)) ** 2 / 10


def grid(optimizer="sgd", loss=valley, **changes):
    return [
        record(optimizer, rate, delay, seed, loss(rate, delay, seed), **changes)
        for rate, delay, seed in itertools.product(RATES, DELAYS, SEEDS)
    ]


def workdir(folder, records, *, names=("over_delay",), facts=None, **config):
    """A run's folder in the documented form."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    opt = {"decay": "constant", "warmup_steps": 0, "sgd": {"momentum": 0.0}}
    settings = {
        "task": {"name": "breast_cancer"},
        "opt": opt,
        "metric": "test_loss",
        "select_by": "train_loss",
        "figures": names,
    } | config
    facts = facts or {"sharpness": SHARPNESS, "optimum_loss": OPTIMUM}
    (folder / "config.json").write_text(
        json.dumps({"config": settings, "facts": facts})
    )
    with (folder / "metrics.jsonl").open("w") as file:
        for row in progress():
            file.write(json.dumps(row) + "\n")
    return folder


def progress():
    return [
        {
            "program": program,
            "step": step,
            "train_loss": None if step == 30 else 5.0 / step + offset,
            "not_finite": step // 10,
        }
        for offset, program in enumerate(("sgd-none-after", "sgd-none-before"))
        for step in (10, 20, 30, 40)
    ]


def rows_of(folder, records):
    return results.read(workdir(folder, records) / "results.csv")


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def check_legible(figure):
    """Every text is at least 10 points high, and nothing reaches out of the picture."""
    figure.draw_without_rendering()
    for text in figure.findobj(Text):
        assert text.get_fontsize() >= 10, text
    # in inches; what an axis does not draw is not counted
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert box.x0 > -0.01 and box.x1 < width + 0.01
    assert box.y0 > -0.01 and box.y1 < height + 0.01


def crosses(axis):
    """Delays with a cross, by colour."""
    return {
        to_hex(marks.get_facecolor()[0]): set(marks.get_offsets()[:, 0])
        for marks in axis.collections
        if marks.get_offset_transform() == axis.get_xaxis_transform()
        and len(marks.get_offsets())
    }


def test_over_delay_draws_the_fixed_step_dashed_and_the_best_one_solid(tmp_path):
    rows = rows_of(tmp_path, grid("sgd") + grid("adam"))
    curves = tuning.curves(rows, "test_loss")
    figure = over_delay.metric(curves)
    (axis,) = figure.axes
    assert axis.get_xlabel() == "staleness (updates)"
    assert axis.get_ylabel() == "test loss (nats)"
    assert len(axis.lines) == 2 * 2
    for line, curve in zip(axis.lines, curves, strict=True):
        assert line.get_linestyle() == ("-" if curve.retuned else "--")
        np.testing.assert_array_equal(line.get_xdata(), DELAYS)
        means = [point.mean for point in curve.points]
        np.testing.assert_array_equal(line.get_ydata(), means)
    assert {"sgd", "adam", "fixed step", "re-tuned step"} <= set(texts(figure))
    check_legible(figure)


def test_series_differ_in_colour_and_in_marker(tmp_path):
    rows = rows_of(tmp_path, grid("sgd") + grid("adam") + grid("muon"))
    figure = over_delay.metric(tuning.curves(rows, "train_loss"))
    tuned = figure.axes[0].lines[1::2]
    assert len({line.get_color() for line in tuned}) == 3
    assert len({line.get_marker() for line in tuned}) == 3
    figure = over_delay.best_step(tuning.curves(rows, "train_loss"))
    lines = [line for line in figure.axes[0].lines if line.get_linestyle() != "None"]
    assert len({line._dash_pattern[1] is None for line in lines}) == 2


def test_the_band_is_the_range_of_the_seeds(tmp_path):
    rows = rows_of(tmp_path, grid())
    fixed, tuned = tuning.curves(rows, "train_loss")
    (axis,) = over_delay.metric([fixed, tuned]).axes
    corners = axis.collections[1].get_paths()[0].vertices
    for point in tuned.points:
        at = corners[corners[:, 0] == point.delay, 1]
        assert (at.min(), at.max()) == pytest.approx(point.spread)
        assert point.spread == (min(point.values), max(point.values))


def test_a_diverged_point_is_a_gap_and_a_cross(tmp_path):
    rows = rows_of(tmp_path, grid())
    fixed, tuned = tuning.curves(rows, "train_loss")
    assert fixed.points[0].learning_rate == 1.0  # beyond the limit at 1 and 4
    figure = over_delay.metric([fixed, tuned])
    (axis,) = figure.axes
    np.testing.assert_array_equal(
        np.isnan(axis.lines[0].get_ydata()), [False, True, True]
    )
    assert not np.isnan(axis.lines[1].get_ydata()).any()
    assert crosses(axis) == {to_hex(axis.lines[0].get_color()): {1.0, 4.0}}
    assert "diverged" in texts(figure)


def test_without_divergence_no_cross_is_promised(tmp_path):
    rows = rows_of(tmp_path, grid(loss=lambda rate, delay, seed: 0.1 + rate))
    figure = over_delay.metric(tuning.curves(rows, "train_loss"))
    assert crosses(figure.axes[0]) == {}
    assert "diverged" not in texts(figure)


def test_warnings_are_written_in_the_figure(tmp_path):
    def loss(rate, delay, seed):
        return 1.0 / rate

    rows = rows_of(tmp_path, grid(loss=loss))
    for metric, draw in (
        ("train_loss", over_delay.metric),
        ("gap", over_delay.gap),
        ("train_loss", over_delay.best_step),
    ):
        curves = tuning.curves(rows, metric)
        (sentence,) = tuning.edge_warnings(curves)
        figure = draw(curves)
        shown = [" ".join(text.split()) for text in texts(figure)]
        assert sentence in shown
        check_legible(figure)


def test_many_warnings_are_counted(tmp_path):
    records = [
        row
        for name in ("sgd", "adam", "lion", "muon")
        for row in grid(name, loss=lambda rate, delay, seed: 1.0 / rate)
    ]
    figure = over_delay.metric(tuning.curves(rows_of(tmp_path, records), "gap"))
    assert any("1 more: see report.html." in text for text in texts(figure))
    check_legible(figure)


@pytest.mark.parametrize(
    ("variants", "titles"),
    [
        ([{}, {"modulation": "inverse"}], [""]),
        (
            [
                {"modulation": law, "placement": place}
                for law in ("none", "inverse", "hinge")
                for place in ("after", "before")
            ],
            ["adam", "sgd"],
        ),
        (
            [
                {"compensation": name, "strength": strength}
                for name in ("dc", "dc_adaptive")
                for strength in (0.0, 0.04, 0.4)
            ],
            ["adam, dc", "adam, dc_adaptive", "sgd, dc", "sgd, dc_adaptive"],
        ),
    ],
)
def test_many_series_are_spread_over_panels(tmp_path, variants, titles):
    records = [
        row
        for name in ("adam", "sgd")
        for variant in variants
        for row in grid(name, **variant)
    ]
    curves = tuning.curves(rows_of(tmp_path, records), "test_accuracy")
    figure = over_delay.metric(curves)
    assert [axis.get_title() for axis in figure.axes] == titles
    assert sum(len(axis.lines) for axis in figure.axes) == len(curves)
    assert figure.axes[0].get_ylabel() == "test accuracy (share)"
    assert all(0 <= tick <= 1 for tick in figure.axes[0].get_yticks())
    check_legible(figure)


def test_the_gap_is_test_minus_training_loss_at_both_steps(tmp_path):
    def loss(rate, delay, seed):
        return 0.1 + abs(math.log(rate * (1 + delay)))

    rows = rows_of(tmp_path, grid(loss=loss, test_loss=2.0))
    figure = over_delay.gap(tuning.curves(rows, "gap"))
    assert [axis.get_title() for axis in figure.axes] == ["fixed step", "re-tuned step"]
    fixed = min(RATES, key=lambda rate: loss(rate, 0, 0))
    (at_fixed,), (at_best,) = (axis.lines for axis in figure.axes)
    np.testing.assert_allclose(
        at_fixed.get_ydata(), [2.0 - loss(fixed, delay, 0) for delay in DELAYS]
    )
    np.testing.assert_allclose(
        at_best.get_ydata(),
        [2.0 - min(loss(rate, delay, 0) for rate in RATES) for delay in DELAYS],
    )
    assert figure.axes[0].get_ylabel() == "test loss - training loss (nats)"
    check_legible(figure)


def test_best_step_shows_the_choice_and_rings_the_edge(tmp_path):
    def loss(rate, delay, seed):
        return abs(math.log(rate * (1 + delay) ** 3))

    curves = tuning.curves(rows_of(tmp_path, grid(loss=loss)), "train_loss")
    figure = over_delay.best_step(curves)
    (axis,) = figure.axes
    line, ring = axis.lines
    best = [
        min(RATES, key=lambda rate, delay=delay: loss(rate, delay, 0))
        for delay in DELAYS
    ]
    assert list(line.get_ydata()) == best
    edge = [
        delay for delay, rate in zip(DELAYS, best, strict=True) if rate == min(RATES)
    ]
    assert edge == [4]
    assert list(ring.get_xdata()) == edge
    assert (axis.get_xscale(), axis.get_yscale()) == ("symlog", "log")
    assert axis.get_ylabel() == "best step size"
    assert "on the grid's edge" in texts(figure)
    check_legible(figure)


def test_without_an_edge_no_ring_is_promised(tmp_path):
    curves = tuning.curves(rows_of(tmp_path, grid()), "train_loss")
    figure = over_delay.best_step(curves)
    assert "on the grid's edge" not in texts(figure)
    assert not len(figure.axes[0].lines[1].get_xdata())


def test_a_delay_without_a_best_step_is_a_cross(tmp_path):
    def loss(rate, delay, seed):
        return math.nan if delay == 4 else abs(math.log(rate))

    curves = tuning.curves(rows_of(tmp_path, grid(loss=loss)), "train_loss")
    (axis,) = over_delay.best_step(curves).axes
    assert list(axis.lines[0].get_xdata()) == [0.0, 1.0]
    assert list(crosses(axis).values()) == [{4.0}]


def shaded(axis):
    """The coloured and the black mesh of a map."""
    return axis.collections[0], axis.collections[1]


def test_the_black_cells_are_exactly_those_where_a_seed_diverged(tmp_path):
    def loss(rate, delay, seed):
        return math.nan if rate > limit(delay) and seed == 1 else 0.2 * rate

    rows = rows_of(tmp_path, grid(loss=loss))
    axis = stability_map.draw(rows, SHARPNESS, OPTIMUM).axes[0]
    colours, black = shaded(axis)
    painted = ~np.ma.getmaskarray(black.get_array())
    expected = [[rate > limit(delay) for rate in RATES] for delay in DELAYS]
    assert np.any(expected) and not np.all(expected)
    np.testing.assert_array_equal(painted, expected)
    np.testing.assert_array_equal(np.ma.getmaskarray(colours.get_array()), expected)
    assert to_rgba(black.cmap(0.5)) == (0.0, 0.0, 0.0, 1.0)


def test_colours_are_the_excess_loss_averaged_over_seeds(tmp_path):
    def loss(rate, delay, seed):
        return OPTIMUM + rate * (1 + delay) * (1 + seed)

    colours, _ = shaded(
        stability_map.draw(
            rows_of(tmp_path, grid(loss=loss)), optimum_loss=OPTIMUM
        ).axes[0]
    )
    expected = [[math.log10(rate * (1 + tau) * 2) for rate in RATES] for tau in DELAYS]
    np.testing.assert_allclose(colours.get_array(), expected, rtol=1e-6)


def test_a_loss_at_the_optimum_has_a_colour(tmp_path):
    rows = rows_of(tmp_path, grid(loss=lambda rate, delay, seed: OPTIMUM - 1e-9))
    colours, _ = shaded(stability_map.draw(rows, optimum_loss=OPTIMUM).axes[0])
    assert np.isfinite(colours.get_array()).all()
    assert colours.get_array().count() == len(RATES) * len(DELAYS)


def test_cells_meet_at_geometric_midpoints(tmp_path):
    colours, _ = shaded(stability_map.draw(rows_of(tmp_path, grid())).axes[0])
    edges = colours.get_coordinates()[0, :, 0]
    np.testing.assert_allclose(
        edges[1:-1], [math.sqrt(a * b) for a, b in itertools.pairwise(RATES)]
    )
    outer = RATES[0] ** 2 / edges[1], RATES[-1] ** 2 / edges[-2]
    np.testing.assert_allclose(edges[[0, -1]], outer)


def test_the_line_is_the_closed_form_across_the_row_of_each_delay(tmp_path):
    axis = stability_map.draw(rows_of(tmp_path, grid()), SHARPNESS).axes[0]
    (line,) = axis.lines
    x, y = line.get_data()
    corners = shaded(axis)[0].get_coordinates()[:, 0, 1]
    for row, delay in enumerate(DELAYS):
        own = (
            (y >= corners[row]) & (y <= corners[row + 1]) & np.isclose(x, limit(delay))
        )
        np.testing.assert_array_equal(y[own], corners[row : row + 2])
    assert len(x) == 2 * len(DELAYS)


def test_a_map_of_one_cell_can_be_drawn(tmp_path):
    rows = rows_of(tmp_path, [record("sgd", 0.1, 0, 0, math.nan)])
    figure = stability_map.draw(rows, SHARPNESS)
    assert np.ma.getmaskarray(shaded(figure.axes[0])[0].get_array()).all()
    check_legible(figure)


def test_the_map_names_its_axes(tmp_path):
    figure = stability_map.draw(rows_of(tmp_path, grid()), SHARPNESS, OPTIMUM)
    axis, bar = figure.axes
    assert axis.get_xlabel() == "step size"
    assert axis.get_ylabel() == "staleness (updates)"
    assert [text.get_text() for text in axis.get_yticklabels()] == ["0", "1", "4"]
    assert "excess training loss (nats)" in bar.get_ylabel()
    assert any("1.5 measured" in text for text in texts(figure))
    check_legible(figure)
    bar = stability_map.draw(rows_of(tmp_path, grid())).axes[1]
    assert "excess" not in bar.get_ylabel()


@pytest.mark.parametrize(
    ("records", "opt", "lines"),
    [
        (grid(), {}, 1),
        (grid("adam"), {}, 0),
        (grid(), {"sgd": {"momentum": 0.9}}, 0),
        (grid(), {"decay": "cosine"}, 0),
        (grid(), {"warmup_steps": 50}, 0),
        (grid(delay_law="geometric"), {}, 0),
        (grid(modulation="inverse"), {}, 0),
        (grid(compensation="dc", strength=0.04), {}, 0),
    ],
)
def test_the_limit_is_drawn_where_it_holds_alone(tmp_path, records, opt, lines):
    settings = {"decay": "constant", "warmup_steps": 0, "sgd": {"momentum": 0.0}}
    folder = workdir(tmp_path, records, opt=settings | opt)
    figure = figures._figure(load(folder), "stability_map")
    assert len(figure.axes[0].lines) == lines


def plateau(rate, delay, seed):
    """Settled up to the limit; beyond it bounded, and diverged beyond thrice it."""
    ratio = rate / limit(delay)
    return OPTIMUM + 1e-7 if ratio <= 1 else OPTIMUM + 0.3 if ratio <= 3 else math.nan


def test_cells_are_bounded_between_the_limit_and_divergence(tmp_path):
    (delays,) = tuning.table(rows_of(tmp_path, grid(loss=plateau))).values()
    shown = stability_map.cells(delays, OPTIMUM)
    expected = [[1 < rate / limit(tau) <= 3 for rate in RATES] for tau in DELAYS]
    assert np.any(expected) and not np.all(expected)
    np.testing.assert_array_equal(stability_map.bounded(shown, SHARPNESS), expected)


def test_the_legend_names_bounded_cells_in_the_colour_of_a_high_loss(tmp_path):
    rows = rows_of(tmp_path, grid(loss=plateau))
    figure = stability_map.draw(rows, SHARPNESS, OPTIMUM)
    colours, _ = shaded(figure.axes[0])
    (legend,) = figure.legends
    patches = {
        patch.get_label(): patch.get_facecolor() for patch in legend.get_patches()
    }
    assert patches == {
        "diverged: ends above where it began": (0.0, 0.0, 0.0, 1.0),
        "bounded, but never settles": colours.cmap(colours.norm(colours.get_clim()[1])),
    }
    check_legible(figure)


@pytest.mark.parametrize(
    ("loss", "sharpness", "optimum"),
    [
        (valley, SHARPNESS, OPTIMUM),  # all that is past the limit diverged
        (lambda rate, delay, seed: OPTIMUM + 1e-6, SHARPNESS, OPTIMUM),
        (plateau, None, OPTIMUM),
        (plateau, SHARPNESS, None),
    ],
)
def test_without_bounded_cells_none_are_promised(tmp_path, loss, sharpness, optimum):
    rows = rows_of(tmp_path, grid(loss=loss))
    shown = texts(stability_map.draw(rows, sharpness, optimum))
    assert "diverged: ends above where it began" in shown
    assert not any("bounded" in text for text in shown)


def test_loss_curves_have_a_line_for_each_program_and_a_gap_without_live_cells():
    figure = loss_curves.draw(progress(), unit="")
    (axis,) = figure.axes
    assert len(axis.lines) == 2
    for offset, line in enumerate(axis.lines):
        assert list(line.get_xdata()) == [10, 20, 30, 40]
        expected = [5.0 / 10 + offset, 5.0 / 20 + offset, math.nan, 5.0 / 40 + offset]
        np.testing.assert_array_equal(line.get_ydata(), expected)
    assert axis.get_xlabel() == "step (updates)"
    assert axis.get_ylabel() == "training loss\nmedian of live cells"
    names = {"sgd, after (4 cells not finite)", "sgd, before (4 cells not finite)"}
    assert names <= set(texts(figure))
    check_legible(figure)


@pytest.fixture
def two_runs(tmp_path):
    edge = workdir(tmp_path / "edge", grid())
    records = [row for name in ("sgd", "adam", "muon") for row in grid(name)]
    language = workdir(tmp_path / "lm", records, task={"name": "char_lm"})
    return edge, language


def test_the_hero_shows_the_map_and_the_excess_over_no_delay(two_runs):
    edge, language = two_runs
    figure = hero.draw(edge, language)
    assert "How late may a gradient be?" in texts(figure)
    left, right = figure.axes[:2]
    np.testing.assert_allclose(
        left.lines[0].get_xdata()[::2], [limit(delay) for delay in DELAYS]
    )
    assert right.get_ylabel() == "excess test loss (nats)"
    assert len(right.lines) == 3
    best = [
        min(
            sum(valley(rate, delay, seed) for seed in SEEDS) / 3 + 0.1
            for rate in RATES
            if rate <= limit(delay)
        )
        for delay in DELAYS
    ]
    for line in right.lines:
        np.testing.assert_allclose(
            line.get_ydata(), np.asarray(best) - best[0], atol=1e-12
        )
    check_legible(figure)


def test_the_hero_names_bounded_cells_where_there_are_some(two_runs, tmp_path):
    edge, language = two_runs
    assert "bounded,\nunsettled" not in texts(hero.draw(edge, language))
    edge = workdir(tmp_path / "bounded", grid(loss=plateau))
    figure = hero.draw(edge, language)
    assert {"diverged", "bounded,\nunsettled"} <= set(texts(figure))
    check_legible(figure)


def test_a_hero_without_its_runs_says_what_it_needs(two_runs, tmp_path):
    edge, language = two_runs
    with pytest.raises(FileNotFoundError, match=r"nowhere.*is missing"):
        hero.draw(edge, tmp_path / "nowhere")
    with pytest.raises(ValueError, match="plain SGD alone"):
        hero.draw(language, edge)
    late = workdir(tmp_path / "late", [row for row in grid() if row["delay"]])
    with pytest.raises(ValueError, match="a delay of 0"):
        hero.draw(edge, late)


def png_size(path: Path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_draw_writes_what_the_config_asks_for_at_the_width_of_a_readme(tmp_path):
    folder = workdir(tmp_path, grid(), names=results.FIGURES)
    paths = figures.draw(folder)
    assert paths == [folder / "figures" / f"{name}.png" for name in results.FIGURES]
    assert [png_size(path)[0] for path in paths] == [900] * len(paths)
    assert figures.warnings(folder) == []


def test_what_was_not_recorded_is_not_drawn_but_told(tmp_path):
    folder = workdir(
        tmp_path,
        grid(test_loss="", test_accuracy=""),
        names=results.FIGURES,
        metric="test_accuracy",
    )
    (folder / "metrics.jsonl").unlink()
    drawn = [path.stem for path in figures.draw(folder)]
    assert drawn == ["best_step", "stability_map"]
    sentences = figures.warnings(folder)
    assert [sentence.split()[0] for sentence in sentences] == [
        *("over_delay", "gap_over_delay", "loss_curves"),
    ]


def test_only_figures_that_tune_warn_of_edges(tmp_path):
    records = grid(loss=lambda rate, delay, seed: 1.0 / rate)
    folder = workdir(tmp_path, records, names=("best_step",))
    assert len(figures.warnings(folder)) == 1
    assert figures.warnings(workdir(tmp_path, records, names=("stability_map",))) == []


def test_an_unknown_figure_is_refused(tmp_path):
    folder = workdir(tmp_path, grid(), names=("pie",))
    with pytest.raises(ValueError, match=r"config.figures must be among .* got pie"):
        figures.draw(folder)


def test_drawing_leaves_the_style_of_others_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    figures.draw(workdir(tmp_path, grid()))
    assert dict(matplotlib.rcParams) == before


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "experiments.figures", *map(str, arguments)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_draws_a_run_again_and_the_hero(two_runs, tmp_path):
    edge, language = two_runs
    done = command(f"--workdir={edge}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(edge / "figures" / "over_delay.png")]
    out = tmp_path / "docs" / "late.png"
    done = command(f"--hero={edge},{language}", f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert png_size(out)[0] == 900


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "either --workdir"),
        (("--workdir=nowhere",), "error: nowhere/config.json is missing"),
        (("--hero=one", "--out=late.png"), "error: --hero needs two folders"),
    ],
)
def test_the_command_refuses_readably(arguments, message):
    done = command(*arguments)
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
