"""The figures of a run are drawn as its config asks, and by the command line."""

import struct
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from experiments import figures, results
from experiments.figures import names
from experiments.figures.run import load
from tests.figures import arm_run
from tests.figures.delay_run import grid, two_runs, workdir
from tests.figures.legible import legend, texts

# those of any task; two more are of quadratics alone, and tested beside these figures
FIGURES = tuple(name for name in results.FIGURES if name != "noise_floor")
ARM_FIGURES = tuple(name for name in results.ARM_FIGURES if name != "decay_rate")


def png_size(path: Path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_draw_writes_what_the_config_asks_for_at_the_width_of_a_readme(tmp_path):
    folder = workdir(tmp_path, grid(), names=FIGURES)
    paths = figures.draw(folder)
    assert paths == [folder / "figures" / f"{name}.png" for name in FIGURES]
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
        *("over_delay", "gap_over_delay", "loss_curves", "noise_floor"),
    ]


def test_draw_writes_all_figures_of_arms_at_the_width_of_a_readme(tmp_path):
    folder = arm_run.workdir(tmp_path, figures=ARM_FIGURES)
    paths = figures.draw(folder)
    assert [path.stem for path in paths] == list(ARM_FIGURES)
    assert [png_size(path)[0] for path in paths] == [900] * len(paths)


def test_figures_of_arms_show_the_records(tmp_path):
    run = load(arm_run.workdir(tmp_path, figures=results.ARM_FIGURES))
    end = {
        "over_seconds": arm_run.pace(arm_run.ARMS[2]) * arm_run.STEPS * 1.1,
        "over_updates": arm_run.STEPS,
        "over_examples": 30 * arm_run.STEPS,
    }
    for name, last in end.items():
        (axis,) = figures._figure(run, name).axes
        ends = [line.get_xdata()[-1] for line in axis.lines]
        assert max(ends) == pytest.approx(last)
    figure = figures._figure(run, "staleness")
    means = [
        f"{trace.summary().mean:.3g} ({theory:.3g})"
        for trace, theory in zip(run.traces.values(), (1.5, 0.0, 7.0), strict=True)
    ]
    assert set(means) <= set(texts(figure))
    figure = figures._figure(run, "over_option")
    assert "How does each arm end?" in texts(figure)
    places = {tuple(line.get_xdata()) for line in figure.axes[0].lines}
    assert places == {(4,), (8,)}
    assert len(figures._figure(run, "gantt").axes) == 3
    assert len(figures._figure(run, "arms").axes) == 2


@pytest.mark.parametrize(
    ("metric", "target", "label", "marked"),
    [
        ("train_loss", "train_loss", "training loss (nats)", True),
        ("test_accuracy", "train_loss", "test error (share)", False),
        ("seconds_to_target", "gradient_norm", "gradient norm", True),
    ],
)
def test_the_target_is_marked_where_its_metric_is_shown(
    tmp_path, metric, target, label, marked
):
    folder = arm_run.workdir(
        tmp_path,
        figures=["over_seconds"],
        metric=metric,
        target={"metric": target, "value": 0.9},
    )
    figure = figures._figure(load(folder), "over_seconds")
    assert figure.axes[0].get_ylabel() == label
    assert ("target" in legend(figure)) == marked


def test_lines_over_time_are_at_the_step_that_the_config_chooses_by(tmp_path):
    folder = arm_run.workdir(
        tmp_path,
        figures=["over_updates"],
        reached=lambda arm, law, rate, seed: rate,
        metric="train_loss",
        select_by="seconds_to_target",
    )
    (axis,) = figures._figure(load(folder), "over_updates").axes
    fastest = arm_run.RATES[0]
    ends = [
        arm_run.loss(arm, law, fastest, 1)
        for arm in arm_run.ARMS
        for law in arm_run.LAWS
    ]
    lines = [line for line in axis.lines if len(line.get_xdata()) > 2]
    np.testing.assert_allclose([line.get_ydata()[-1] for line in lines], ends)


def test_the_best_law_of_an_arm_is_the_one_that_the_config_chooses_by(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(names, "MOST", 2)  # too few lines for all laws
    folder = arm_run.workdir(
        tmp_path,
        figures=["over_updates"],
        reached=lambda arm, law, rate, seed: rate + (law != "none"),
        metric="train_loss",
        select_by="seconds_to_target",
    )
    (axis,) = figures._figure(load(folder), "over_updates").axes
    fastest = arm_run.RATES[0]
    ends = [arm_run.loss(arm, "none", fastest, 1) for arm in arm_run.ARMS]
    lines = [line for line in axis.lines if len(line.get_xdata()) > 2]
    np.testing.assert_allclose([line.get_ydata()[-1] for line in lines], ends)


@pytest.mark.parametrize("name", ARM_FIGURES)
def test_figures_of_tuned_arms_warn_of_edges(tmp_path, name):
    sentences = figures.warnings(arm_run.workdir(tmp_path, figures=[name]))
    warned = any("the smallest tried" in sentence for sentence in sentences)
    assert warned == (name not in ("staleness", "update_times", "gantt"))


def test_a_run_without_arms_has_no_figures_of_arms(tmp_path):
    folder = workdir(tmp_path, grid(), names=results.ARM_FIGURES)
    assert figures.draw(folder) == []
    sentences = [
        sentence
        for sentence in figures.warnings(folder)
        if "config.cluster" in sentence
    ]
    assert [sentence.split()[0] for sentence in sentences] == list(results.ARM_FIGURES)


def test_what_a_run_with_arms_lacks_is_told(tmp_path):
    folder = arm_run.workdir(
        tmp_path,
        figures=results.ARM_FIGURES,
        target={"metric": "train_loss", "value": 0.0},
    )
    (folder / "curves.csv").unlink()
    gone = next((folder / "traces").iterdir())
    gone.unlink()
    drawn = {path.stem for path in figures.draw(folder)}
    assert drawn == {"arms", "over_option"}
    told = {
        sentence.split()[0]: sentence
        for sentence in figures.warnings(folder)
        if " is not drawn: " in sentence
    }
    assert set(told) == set(results.ARM_FIGURES) - drawn
    for name in ("over_seconds", "decay_rate"):
        assert "curves.csv is missing" in told[name]
    assert gone.name in told["gantt"] and gone.name in told["staleness"]


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


def test_the_command_draws_a_run_again_and_the_hero(tmp_path):
    edge, language = two_runs(tmp_path)
    done = command(f"--workdir={edge}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(edge / "figures" / "over_delay.png")]
    out = tmp_path / "docs" / "late.png"
    done = command(f"--hero={edge},{language}", f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert png_size(out)[0] == 900


@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_the_command_draws_and_describes_a_trace(kind, tmp_path):
    trace = arm_run.traces()["n_softsync(2)"]
    trace.save(tmp_path / f"log.{kind}")
    out = tmp_path / "pictures"
    done = command(f"--trace={tmp_path / f'log.{kind}'}", f"--out={out}")
    assert done.returncode == 0, done.stderr
    paths = [out / "staleness.png", out / "gantt.png"]
    *described, first, second = done.stdout.splitlines()
    assert [first, second] == [str(path) for path in paths]
    assert [png_size(path)[0] for path in paths] == [900, 900]
    summary, said = trace.summary(), " ".join(" ".join(described).split())
    assert f"mean {summary.mean:.4g}, median {summary.p50:g}" in said
    assert f"at most {summary.max} updates" in said
    assert f"updates 40 in {trace.seconds[-1]:.6g} s" in said
    assert f"gradients {len(trace.worker)} applied, at most 2 in an update" in said
    idle = "0.0%" if kind == "npz" else "unknown"
    assert f"workers 4, idle {idle} of the time" in said


def test_a_log_of_ages_has_a_picture_of_ages_alone(tmp_path):
    (tmp_path / "ages.csv").write_text("staleness\n0\n1\n2\n")
    done = command(f"--trace={tmp_path / 'ages.csv'}", f"--out={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(tmp_path / "staleness.png")
    assert not (tmp_path / "gantt.png").exists()
    assert "3 at times that the log does not say" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either --workdir"),
        (("--workdir=a", "--trace=b.csv"), "give either --workdir"),
        (("--trace=nowhere.csv", "--out=a"), "error: "),
        (("--trace=nowhere.csv",), "error: --trace needs --out=DIR"),
        (("--trace=README.md", "--out=a"), "must end in .npz or .csv"),
        (("--workdir=nowhere",), "error: nowhere/config.json is missing"),
        (("--hero=one", "--out=late.png"), "error: --hero needs two folders"),
    ],
)
def test_the_command_refuses_readably(arguments, message):
    done = command(*arguments)
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
