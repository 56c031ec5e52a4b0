"""A report answers its question with the numbers of its own run."""

import dataclasses
import re
import shutil

import optax
import pandas as pd
import pytest

import delayjax as dj
from experiments import (
    Effect,
    Experiment,
    Published,
    Run,
    figures,
    points,
    report,
    tasks,
)
from experiments import run as trained
from experiments.draw import main
from experiments.results import analysis
from experiments.results.claims import Record, digest
from experiments.results.estimates import estimate
from experiments.results.measures import tuned
from experiments.results.selection import Selection
from experiments.statements import Statements
from tests.experiments.figures.runs import RATES, made, traced, written
from tests.experiments.page_text import Text

pytestmark = pytest.mark.runs


def accuracy(result):
    rows = analysis.where(result.best, delay=0)
    return rows.test_accuracy.mean()


def of_doe(text, said, measure=accuracy, **options):
    return Published(
        text=text, source="Doe (2020)", said=said, measure=measure, **options
    )


PUBLISHED = [
    of_doe("It learns", "well", at_least=0.5),
    of_doe("It is perfect", "quite", at_least=2.0, tried="more seeds"),
    of_doe("It asks too much", "all", lambda result: result.nothing, at_most=1.0),
    of_doe("It is large", "256 GPUs", None, tried="no GPU here"),
]


LATE = Effect(metric="test_error", against={"delay": 0}, size=points(1))
STATED = Statements(PUBLISHED)


def experiment(**changes):
    asked = dict(question="Why?", task=lambda: None, training=optax.sgd(1.0), updates=1)
    drawn = [figures.over("delay", "test_error"), figures.staleness()]
    fields = {"answer": LATE, "figures": drawn}
    return Experiment(**asked | fields | changes)


def shown(path):
    """The text of a page."""
    return str(Text(path.read_text()))


def test_the_answer_and_the_statements_are_of_this_run(tmp_path):
    run = made(tmp_path)
    low, high = estimate(accuracy, run).interval()
    mean = accuracy(run)
    records = [
        Record("Accuracy", accuracy, mean, 0.0),
        Record("Nearly", accuracy, mean + 0.01, 0.0025),
        Record("Another", accuracy, mean + 0.02, 0.0),
    ]
    stated = Statements(PUBLISHED, records)
    words = shown(report.write(run, experiment(), stated.verdicts(run)))
    answer = LATE.answer(run)
    assert f"Why? {answer.text}" in words
    for row in answer.shown.to_numpy().tolist():
        assert " ".join(row) in words
    number = f"{mean:.4g} ({low:.3g} to {high:.3g}); {len(run.seeds)} seeds"
    source = "Doe (2020); said: "
    assert f"It learns {source}well at least 0.5 {number} reproduced" in words
    assert f"It is perfect {source}quite at least 2 {number} not reproduced" in words
    assert "It is perfect: more seeds" in words
    assert f"{source}all at most 1 AttributeError: 'Run' object has no" in words
    assert f"{source}256 GPUs nothing no GPU here not tested" in words
    assert f"Accuracy {mean:.4g} ± {0.001 * mean:.2g} " in words
    records = words[words.index("Records") :]
    assert re.findall(r"spread [0-9.e-]+ (\w+)", records) == ["met", "met", "missed"]


def test_statements_that_were_edited_after_the_run_began_are_said_to_be(tmp_path):
    sentence = "These statements were edited after the run began."
    stated = {"published": digest(PUBLISHED)}
    run = made(tmp_path, info=stated)
    assert sentence not in shown(report.write(run, experiment(), STATED.verdicts(run)))
    milder = dataclasses.replace(PUBLISHED[1], at_least=0.9)
    edited = Statements([PUBLISHED[0], milder, *PUBLISHED[2:]])
    assert sentence in shown(report.write(run, experiment(), edited.verdicts(run)))


def test_answers_that_the_run_has_are_not_made_again(tmp_path):
    answer = LATE.answer(made(tmp_path))._replace(text="It is late.")
    run = dataclasses.replace(made(tmp_path), answers=[answer])
    words = shown(report.write(run, experiment(answer=LATE)))
    assert "It is late." in words and "Test error, compared" not in words


@dataclasses.dataclass
class Failing:
    """A user's table, which raises an error."""

    name: str = "own_table"
    caption: str = "Own"

    def make(self, run):
        return {}["absent"]


class Nameless:
    """A table without a name."""

    make = None


class Listed:
    """A table that is a list, and no data frame."""

    name, caption = "listed", "Own"

    def make(self, run):
        return [1, 2]


def test_each_part_that_fails_is_a_line_of_the_log_and_the_rest_is_there(
    tmp_path, caplog
):
    asks_too_much = Record("Nothing", lambda result: result.nothing, 1.0, 0.0)
    failing = experiment(
        answer=[dataclasses.replace(LATE, against={"law": "none"}), LATE],
        tables=[Failing(), Failing("results"), Nameless(), Listed(), Failing("a\nb")],
    )
    run = made(tmp_path)
    stated = Statements(PUBLISHED, [asks_too_much])
    path = report.write(run, failing, stated.verdicts(run))
    words, page = shown(path), path.read_text()
    error = "AttributeError: 'Run' object has no attribute 'nothing'"
    assert [record.getMessage() for record in caplog.records] == [
        "report: `answer` fails: test error cannot be compared with no law:"
        " `against` names ['law'], which no series has.",
        f"report: 'It asks too much' cannot be measured: {error}",
        "report: staleness is not drawn: ValueError: the run has no traces.",
        "report: own_table is not shown: KeyError: 'absent'",
        "report: results is not shown: ValueError: results.csv is a file of each run:"
        " choose another name.",
        "report: Nameless is not shown: AttributeError: 'Nameless' object has no"
        " attribute 'name'",
        "report: listed is not shown: AttributeError: 'list' object has no attribute"
        " 'to_csv'",
        "report: a b is not shown: KeyError: 'absent'",  # one line
        f"report: 'Nothing' cannot be measured: {error}",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    message = "test error cannot be compared with no law: `against` names"
    assert f"`answer` fails: {message}" in words
    assert LATE.answer(run).text in words  # the other one
    assert "It learns" in words and "Results" in words
    assert page.count("data:image/svg+xml;base64,") == 1
    assert "http" not in page and "<script" not in page
    assert "staleness is not drawn: ValueError: the run has no traces." in words
    assert (tmp_path / "figures/test_error_over_delay.svg").stat().st_size > 1000
    assert not (tmp_path / "results.csv").exists()


def test_an_overridden_run_keeps_its_answer_and_has_no_records(tmp_path):
    run = made(tmp_path, info={"changed": {"updates": [1000, 40], "law": [None, "x"]}})
    records = [Record("Accuracy", accuracy, 0.5, 0.0)]
    stated = Statements(PUBLISHED, records)
    words = shown(report.write(run, experiment(), stated.verdicts(run)))
    assert "Values changed" in words and "updates 1000 40" in words
    assert "this run has other values than the config file" in words
    assert LATE.answer(run).text in words and "Records" not in words


def test_the_final_table_has_each_series_at_its_best_step(tmp_path):
    run = made(tmp_path)
    table = report.final_table(run)
    assert table.delay.tolist() == [0, 1, 4]
    for row in table.to_dict("records"):
        cells = analysis.where(run.results, delay=row["delay"])
        live = cells[cells.groupby("learning_rate").diverged.transform("max") == 0]
        assert (
            row["best step size"]
            == live.groupby("learning_rate").train_loss.mean().idxmin()
        )
        best = analysis.where(cells, learning_rate=row["best step size"])
        assert row["test_error"][0] == pytest.approx(best.test_error.mean())
        assert row["of all its trainings, diverged"] == f"{cells.diverged.mean():.0%}"
    words = shown(report.write(run))
    assert "delay (updates) best step size training loss (nats)" in words
    assert "chosen by the least training loss on these seeds, which makes" in words


def test_the_shares_are_of_each_series_in_whatever_order_its_optimum_stands(tmp_path):
    run = made(tmp_path)
    rows = [(0, RATES[-1]), (1, RATES[0]), (4, RATES[0])]
    optima = pd.DataFrame(rows, columns=["delay", "learning_rate"])
    optima = optima.assign(found=True, score=0.0)
    run = dataclasses.replace(
        run, selection=Selection(("learning_rate",), optima=optima)
    )
    table = report.final_table(run).set_index("delay")
    assert sorted(table.index) == [0, 1, 4] and [*table.index] != [0, 1, 4]
    assert table["best step size"].to_dict() == dict(rows)
    for delay, share in table["of all its trainings, diverged"].items():
        cells = analysis.where(run.results, delay=delay)
        assert share == f"{cells.diverged.mean():.0%}"


def test_a_bounded_run_that_ends_higher_has_its_number_and_its_share(tmp_path):
    run = made(tmp_path, lambda **cell: 5.0)
    higher = (run.results.seed == 1).astype(int)
    fates = run.results.assign(ended_higher=higher)
    run = dataclasses.replace(run, results=fates)
    table = report.final_table(run)
    assert (table["of all its trainings, diverged"] == "0%").all()
    assert (table["of all its trainings, ended higher"] == "33%").all()
    words = shown(report.write(run))
    assert "nothing to compare with at" in words
    assert " 0 0.1 5 5.1" in words or " 0 0.03 5 5.1" in words  # and not "diverged"


def test_a_run_that_diverged_everywhere_has_a_report(tmp_path):
    run = made(tmp_path, lambda **cell: float("nan"))
    words = shown(report.write(run, experiment()))
    assert "diverged" in words


def test_what_ran_can_be_copied_and_what_a_config_says_is_no_markup(tmp_path):
    info = {
        "question": "a < b & <b>c</b>?",
        **{"source": "configs/x.py", "argv": ["main.py", "--config.delay=(0, 1)"]},
        **{"versions": {"jax": "9.9"}, "wall_seconds": 90.0, "git": "abc"},
        **{"config": {"delay": [0, 1]}},
    }
    path = report.write(made(tmp_path, info=info))
    assert "<h1>a &lt; b &amp; &lt;b&gt;c&lt;/b&gt;?</h1>" in path.read_text()
    words = shown(path)
    assert "python -m experiments.main '--config.delay=(0, 1)'" in words
    assert f"python -m experiments.draw {tmp_path}" in words
    for fact in ("wall time 90 s (1.5 min)", "jax 9.9", "git commit abc", "delay 0, 1"):
        assert fact in words


def test_clusters_are_described(tmp_path):
    run = traced(tmp_path)
    words = shown(report.write(run, experiment()))
    for name, trace in run.traces.items():
        assert f"{name} 3 {trace.summary().mean:.4g}" in words


def test_a_run_is_read_as_it_was_written(tmp_path):
    run = made(tmp_path)
    copy = written(run)
    assert copy.settings == run.settings == ["learning_rate", "delay"]
    assert copy.results.equals(run.results) and copy.info == run.info


def test_runs_of_one_config_are_shards_and_others_are_series(tmp_path):
    run = made(tmp_path / "whole")
    halves = [run.results.delay < 1, run.results.delay >= 1]
    for i, rows in enumerate(halves):
        part = dataclasses.replace(run, folder=tmp_path / f"part{i}")
        written(dataclasses.replace(part, results=run.results[rows]))
    both = Run.read(tmp_path / "part0", tmp_path / "part1")
    assert both.settings == run.settings
    keys = [*run.settings, "seed"]
    whole = both.results.drop(columns="run").sort_values(keys, ignore_index=True)
    assert whole.equals(run.results.sort_values(keys, ignore_index=True))
    shutil.copytree(tmp_path / "part0", tmp_path / "again")
    twice = Run.read(tmp_path / "part0", tmp_path / "again")
    assert twice.settings[0] == "run"
    with pytest.raises(ValueError, match=r"`folders` .* each once"):
        Run.read(tmp_path / "part0", tmp_path / "again" / ".." / "part0")
    other = {"learning_rate": RATES, "delay": (8, 16)}  # no cell in common
    adam = {"config": {"optimizer": "adam"}}
    written(made(tmp_path / "other", info=adam, **other))
    assert Run.read(tmp_path / "part0", tmp_path / "other").settings[0] == "run"


def test_several_runs_are_drawn_together(tmp_path, capsys):
    written(made(tmp_path / "a"))
    written(made(tmp_path / "b"))
    folders = [str(tmp_path / name) for name in "ab"]
    options = ["--x=delay", "--y=test_error"]
    main([*folders, *options, f"--out={tmp_path}"])
    path = tmp_path / "test_error_over_delay.svg"
    assert capsys.readouterr().out.strip() == str(path)
    text = path.read_text()
    assert text.startswith("<?xml") and "No optimum" not in text
    optima = [(delay, RATES[0], delay == 1) for delay in (0, 1, 4)]
    optima = pd.DataFrame(optima, columns=["delay", "learning_rate", "found"])
    optima = optima.assign(why="-", score=0.0)
    optima.to_csv(tmp_path / "b/optima.csv", index=False)
    main([*folders, *options, f"--out={tmp_path}"])
    assert "No optimum is found of delay=0; delay=4." in path.read_text()
    (tmp_path / "b/optima.csv").unlink()
    main([folders[0]])
    assert (tmp_path / "a/report.html").exists()


def test_a_trace_is_drawn_and_described(tmp_path, capsys):
    traced(tmp_path)
    folder = tmp_path / "out"
    main([f"--trace={tmp_path}/traces/ssp.npz", f"--out={folder}"])
    assert {path.name for path in folder.iterdir()} == {"staleness.svg", "gantt.svg"}
    lines = capsys.readouterr().out.splitlines()
    summary = dj.cluster.load_trace(tmp_path / "traces/ssp.npz").summary()
    assert lines[0].split() == ["workers", "3"]
    assert f"{'mean':<20}{summary.mean:.6g}" in lines


def test_a_figure_of_ones_own_is_anything_that_draws_and_has_the_style(tmp_path):
    class Mine:
        name = "mine"

        def draw(self, run):
            from matplotlib import rcParams
            from matplotlib.figure import Figure

            assert not rcParams["legend.frameon"]
            drawn = Figure()
            drawn.subplots().plot(run.results.delay, run.results.train_loss, "o")
            return drawn

    (drawn,) = figures.save(made(tmp_path), [Mine()])
    assert drawn.path == tmp_path / "figures/mine.svg" and drawn.path.exists()


def test_tables_figures_and_claims_agree_with_results_csv(tmp_path):
    """tuning/results.csv chooses the best step size; means are of results.csv."""

    def late(learning_rate, delay):
        return dj.delayed(optax.sgd(learning_rate), delay, max_delay=4)

    rates, delays = (0.05, 0.2, 0.8), (0, 4)
    asked = experiment(
        task=tasks.quadratic((0.5, 2.0), noise=1.0),
        training=late,
        grid={"learning_rate": rates, "delay": delays},
        **dict(seeds=3, tuned="learning_rate", tuning_seeds=2, updates=20),
        answer=dataclasses.replace(LATE, metric="train_loss"),
        figures=[],
    )
    records = [
        Record(f"loss at {delay}", tuned("train_loss", delay=delay), 1.0, 1e9)
        for delay in delays
    ]
    result = trained(asked, str(tmp_path))
    reported = pd.read_csv(tmp_path / "results.csv")
    tuning = pd.read_csv(tmp_path / "tuning" / "results.csv")
    assert set(reported.seed) == {0, 1, 2} and set(tuning.seed) == {1000, 1001}
    expected = {}
    for delay in delays:
        scores = tuning[(tuning.delay == delay) & (tuning.diverged == 0)]
        rate = scores.groupby("learning_rate").train_loss.mean().idxmin()
        rows = reported[(reported.delay == delay) & (reported.learning_rate == rate)]
        expected[delay] = rate, rows.train_loss.mean()
    saved = Run.read(tmp_path)
    for read in (result, saved):
        steps = read.best.groupby("delay").learning_rate.unique().str[0]
        assert steps.to_dict() == {d: rate for d, (rate, _) in expected.items()}
    table = report.final_table(saved)
    for row in table.to_dict("records"):
        rate, loss = expected[row["delay"]]
        assert row["best step size"] == rate
        assert row["train_loss"][0] == pytest.approx(loss)
    (axis,) = figures.over("delay", "train_loss", fixed=False).draw(saved).axes
    losses = [loss for _, loss in expected.values()]
    assert list(axis.lines[0].get_ydata()) == pytest.approx(losses)
    (axis,) = figures.best_step("delay").draw(saved).axes
    steps = [rate for rate, _ in expected.values()]
    assert list(axis.lines[0].get_ydata()) == pytest.approx(steps)
    (axis,) = figures.curves("train_loss").draw(saved).axes
    ends = [line.get_ydata()[-1] for line in axis.lines]
    assert ends == pytest.approx(losses)
    verdicts = Statements((), records).verdicts(saved)
    words = shown(report.write(saved, asked, verdicts))
    note = "chosen by the least training loss on the seeds 1000, 1001, which are not"
    assert note in words
    for loss in losses:
        assert re.search(rf"± 4e\+09 {loss:.5g}, spread \S+ met", words)
