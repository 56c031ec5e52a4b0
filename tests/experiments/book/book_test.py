"""The book: an entry a config, made from the folder of its run."""

import ast
import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import optax
import pandas as pd
import pytest
from scipy import stats

from experiments import Experiment, Published, Run, figures, statements, tasks
from experiments.book import entries, page, runs
from experiments.book.chapters import CHAPTERS, NOT_RUN, SYSTEMS
from experiments.book.entries import Entry, Status
from experiments.config_files import ConfigFile
from experiments.page import Picture, Statement
from experiments.results import claims, effects
from experiments.results.claims import Judged
from experiments.results.estimates import Estimate
from tests.experiments.figures.runs import made
from tests.experiments.page_text import Text
from tests.support.commands import ROOT, finish

pytestmark = pytest.mark.runs


def test_each_config_is_in_one_chapter_with_a_system_of_its_own():
    files = {path.stem for path in (ROOT / "configs").glob("*.py")} - {"__init__"}
    assert {name.partition(":")[0] for name in SYSTEMS} == files
    assert sum(map(len, CHAPTERS.values())) == len(SYSTEMS)
    assert len(set(SYSTEMS.values())) == len(SYSTEMS)
    assert set(NOT_RUN) < set(SYSTEMS)


def statement(text="It <halves>", measure=lambda result: 0.4, **options):
    said = dict(source="Doe (2020), Table 1", said="half", at_most=0.5)
    return Published(text=text, measure=measure, **said | options)


def judged(verdict, claim=None):
    own = Judged(claim or statement(), Estimate(0.4, 0.01, 5), verdict)
    return Statement.of(own)


def test_the_page_has_answers_statements_and_verdicts_and_loads_nothing(tmp_path):
    picture = figures.save(made(tmp_path), [figures.over("delay", "test_error")])
    tried = statement("It doubles", tried="more <seeds>")
    bound = [
        Entry(
            "softsync",
            "Does it <help>?",
            Status.RUN,
            "It helps & more.",
            statements=[
                judged(claims.REPRODUCED),
                judged(claims.NOT_REPRODUCED, tried),
            ],
            edited=True,
            picture=Picture.of("errors", picture[0].path.read_bytes(), ".svg"),
        ),
        Entry("default", "How late?", Status.RUN, "Four."),
        Entry("dana", "Which momentum?", Status.NOT_YET),
        Entry("imagenet", "Which cost?", Status.NOT_HERE, reason="a pod is needed"),
        Entry("gossip", "Which <graph>?", Status.RUN, reason="KeyError: <x>"),
    ]
    shown = page.html("small size; today", bound)
    text = Text(shown)
    words = str(text)
    assert text.loads == []
    assert "small size; today" in words
    assert "reproduced n-softsync" in words
    said = "no statement Adam with late gradients; Gossip not run yet"
    assert f"{said} DANA not run here ResNet-50 on ImageNet" in words
    assert "Which momentum? Not run yet." in words
    assert "Which cost? Not run here: a pod is needed." in words
    assert "Which <graph>? No answer: KeyError: <x>." in words
    assert "Does it <help>? It helps & more." in words
    source = "Doe (2020), Table 1; said: half"
    row = f"It <halves> {source} at most 0.5 0.4 (0.372 to 0.428); 5 seeds"
    assert f"{row} reproduced" in words
    assert "It doubles: more <seeds>" in words
    assert "These statements were edited after the run began." in words
    assert "--config=configs/softsync.py --workdir=runs/softsync" in words
    assert shown.count("data:image/svg+xml;base64,") == 1


def test_a_table_has_a_row_a_statement_and_is_read_as_it_was_written():
    two = judged("reproduced"), judged("undecided")
    run = Entry("softsync", "?", Status.RUN, "a", "", two, 1.26, "a GPU")
    none = Entry("imagenet", "??", Status.NOT_HERE, reason="it needs a pod")
    table = entries.table([run, none])
    assert table["config"].tolist() == ["softsync", "softsync", "imagenet"]
    assert table["verdict"].tolist() == ["reproduced", "undecided", ""]
    assert table["minutes"].tolist() == ["1.26", "1.26", "0.00"]
    assert table["ran_on"].tolist() == ["a GPU", "a GPU", ""]
    assert table["measured"][0] == "0.4 (0.372 to 0.428)"
    assert float(table["p"][0]) == pytest.approx(3 * 2 * stats.t.sf(10, 4), rel=0.01)
    assert table["system"][2] == "ResNet-50 on ImageNet"
    assert table["status"].tolist() == ["run", "run", "not run here"]
    assert table["reason"].tolist() == ["", "", "it needs a pod"]
    assert entries.from_table(table) == [run, none]


def test_an_entry_says_why_there_is_no_run(tmp_path):
    pod = entries.entry_of("imagenet", tmp_path)
    assert (pod.status, pod.verdict) == (Status.NOT_HERE, "not run here")
    assert pod.shown == "Not run here: it needs a pod and ImageNet."
    later = entries.entry_of("k_async:pareto", tmp_path)
    assert (later.status, later.verdict) == (Status.NOT_YET, "not run yet")
    assert later.shown == "Not run yet."
    first, second = later.statements  # what will be judged is there before the run
    assert (first.verdict, first.measured) == ("not run yet", "not measured")
    assert second.verdict == "not tested" and second.measured == second.tried
    assert entries.place("k_async:pareto") == "k_async-pareto"
    assert entries.source("k_async:pareto") == "configs/k_async.py:pareto"


def test_an_answer_may_begin_with_any_words():
    """The status says that there is a run, and no text does."""
    run = Entry("default", "?", Status.RUN, "Not run here: a joke.")
    assert run.verdict == "no statement" and run.shown == run.answer
    (again,) = entries.from_table(entries.table([run]))
    assert again == run


def test_a_folder_with_another_run_is_not_run_yet_and_says_why(tmp_path):
    (tmp_path / "default").mkdir()
    lost = {"finished": True, "source": "configs/nowhere.py", "config": {}}
    (tmp_path / "default" / "run.json").write_text(json.dumps(lost))
    entry = entries.entry_of("default", tmp_path)
    assert entry.status is Status.NOT_YET
    assert "configs/nowhere.py" in entry.shown


def test_the_finished_look_with_the_most_seeds_counts(tmp_path, monkeypatch):
    for folder, minutes in (("default", 1), ("default-x2", 2), ("default-x4", 4)):
        info = {"finished": folder != "default-x4", "wall_seconds": 60 * minutes}
        info |= {"devices": f"{minutes} x cpu", "versions": {"jax": "1"}}
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.json").write_text(json.dumps(info))
    none = Experiment(
        question="?", task=tasks.quadratic(), training=optax.sgd(0.1), updates=1
    )
    of_run = (none, statements.Statements())
    monkeypatch.setattr(statements, "of_run", lambda info: of_run)
    monkeypatch.setattr(entries.Run, "read", lambda path: None)
    monkeypatch.setattr(effects, "answers", lambda run, asked: [])
    entry = entries.entry_of("default", tmp_path)
    assert (entry.ran_on, entry.minutes) == ("2 x cpu, jax 1", 2.0)


def book(*arguments, code):
    ended, said = finish(*arguments, module="experiments.book")
    assert ended == code, said
    return said


def test_a_config_that_fails_is_said_and_the_book_is_bound(tmp_path):
    (tmp_path / "default").mkdir()
    (tmp_path / "default" / "results.csv").write_text("seed\n0\n")
    said = book(f"--workdir={tmp_path}", "--only=default", code=1)
    assert "1 of 1: default" in said and "has results.csv, but no run.json" in said
    assert "error: default failed; the others are in the book." in said
    assert "not run yet" in (tmp_path / "book.html").read_text()


@pytest.mark.long
def test_a_run_with_other_values_is_said_and_the_book_is_bound(tmp_path):
    """The smallest config, with fewer updates still; then the page alone."""
    folder = tmp_path / "default"
    short = ["--config.updates=40", "--config.delay=(0,4)", "--config.batch_size=32"]
    subprocess.run(
        [
            *(sys.executable, "-m", "experiments.main", "--config=configs/default.py"),
            *(f"--workdir={folder}", "--quiet", *short),
        ],
        cwd=ROOT,
        check=True,
    )
    # the folder holds a run with other values: it is said, and the book is bound
    asked = f"--workdir={tmp_path}", "--only=default"
    said = book(*asked, code=1)
    assert "1 of 1: default" in said and "holds another run" in said
    assert "error: default failed; the others are in the book." in said
    entry = entries.entry_of("default", tmp_path)
    experiment, _ = statements.of_run(Run.read(folder).info)
    answers = effects.answers(Run.read(folder), experiment.effects)
    said = [str(one) for one in answers]
    assert len(said) == 2 and entry.answer == " ".join(said)
    assert re.fullmatch(r"\d x cpu, jax \S+", entry.ran_on)
    assert "each with its best step size" in (tmp_path / "book.html").read_text()
    (row,) = pd.read_csv(tmp_path / "book.csv").to_dict("records")
    made = r"delayjax \S+, jax .*; \d{4}-\d\d-\d\d"
    assert row["size"] == "small" and re.fullmatch(made, row["about"])
    assert row["answer"] == entry.answer


NAMES = ["default", "softsync", "k_async", "dana"]


def ended_with(monkeypatch, codes, meet=lambda: None):
    """Runs of configs that end with these codes; returns the names that were run."""
    ran = []

    def run(command, check):
        (folder,) = (own for own in command if own.startswith("--workdir="))
        name = Path(folder).name
        ran.append(name)
        meet()
        return subprocess.CompletedProcess(command, codes.get(name, 0))

    monkeypatch.setattr(runs.subprocess, "run", run)
    return ran


def test_failed_configs_are_named_in_their_order(tmp_path, monkeypatch):
    ran = ended_with(monkeypatch, {"k_async": 1, "default": 2})
    failed = runs.run_all(NAMES, tmp_path, small=False, jobs=1)
    assert (failed, ran) == (["default", "k_async"], NAMES)


def test_as_many_configs_run_side_by_side_as_there_are_jobs(tmp_path, monkeypatch):
    """Each run waits until a second one has begun."""
    both = threading.Barrier(2, timeout=60)
    ran = ended_with(monkeypatch, {"dana": 1}, meet=both.wait)
    assert runs.run_all(NAMES, tmp_path, small=False, jobs=2) == ["dana"]
    assert sorted(ran) == sorted(NAMES)


@pytest.mark.parametrize(
    "ended, code",
    [(130, 130), (143, 143), (-signal.SIGINT, 130), (-signal.SIGTERM, 143)],
)
def test_a_run_that_was_stopped_stops_the_book(tmp_path, monkeypatch, ended, code):
    ran = ended_with(monkeypatch, {"softsync": ended})
    with pytest.raises(SystemExit) as stopped:
        runs.run_all(NAMES, tmp_path, small=False, jobs=1)
    assert (stopped.value.code, ran) == (code, NAMES[:2])


def test_a_further_look_has_more_seeds_in_a_copy_of_the_folder(tmp_path, monkeypatch):
    commands = []

    def run(command, check):
        commands.append(command)
        (place,) = (Path(one[10:]) for one in command if one.startswith("--workdir="))
        place.mkdir(exist_ok=True)
        with (place / "search.csv").open("a") as file:
            file.write(f"{len(commands)}")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(runs.subprocess, "run", run)
    for times in claims.LOOKS:
        runs.run_all(["softsync"], tmp_path, small=False, jobs=1, times=times)
    seeds = ConfigFile.load("configs/softsync.py").values["seeds"]
    assert [own[-2:] for own in commands[1:]] == [
        ["--quiet", f"--config.seeds={times * seeds}"] for times in (2, 4)
    ]
    folders = [next(f for f in own if "workdir" in f) for own in commands]
    names = ["softsync", "softsync-x2", "softsync-x4"]
    assert folders == [f"--workdir={tmp_path}/{name}" for name in names]
    texts = [(tmp_path / name / "search.csv").read_text() for name in names]
    assert texts == ["1", "12", "123"]


def test_headlines_that_are_not_decided_among_all_are_looked_at_again(
    tmp_path, monkeypatch
):
    looked = []
    decided_at = {"softsync": 1, "dana": 2, "gossip": 8, "hogwild": 2}

    def run_all(names, workdir, *, times, **options):
        looked.append((times, [*names]))
        return []

    def entry_of(name, workdir):
        times, _ = looked[-1]
        is_decided = times >= decided_at[name]
        verdict = "reproduced" if is_decided or name == "hogwild" else "undecided"
        p = entries.SURE if is_decided else 1.01 * entries.SURE
        stated = judged(verdict)._replace(p=f"{p:.17g}")
        return Entry(name, "?", Status.RUN, statements=[stated])

    monkeypatch.setattr(runs, "run_all", run_all)
    monkeypatch.setattr(entries, "entry_of", entry_of)
    runs.look([*decided_at], tmp_path, small=False, jobs=1)
    again = ["dana", "gossip", "hogwild"]
    assert looked == [(1, [*decided_at]), (2, again), (4, ["gossip"])]
    looked.clear()
    runs.look([*decided_at], tmp_path, small=True, jobs=1)
    assert looked == [(1, [*decided_at])]


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name not in NOT_RUN])
def test_the_small_size_has_few_seeds_and_is_a_run_of_the_config(name):
    flags = entries.small(name)
    own = ConfigFile.load(entries.source(name)).config
    for key, few in {"seeds": 3, "tuning_seeds": 1}.items():
        assert (f"--config.{key}={few}" in flags) == (key in own and own[key] > few)
    for flag in flags:
        key, _, value = flag.removeprefix("--config.").partition("=")
        value = ast.literal_eval(value)
        # a coarser search needs fewer trainings, and a larger loss is reached sooner
        if key in ("tolerance", "target", "loss"):
            assert value > own[key]
        elif isinstance(value, int | float):
            assert 0 < value < own[key]
        else:
            assert set(value) < set(own[key])


def test_configs_that_train_long_are_shorter_in_the_small_size():
    momenta = dict.fromkeys(("late_or_mixed", "muon_delay"), (0.0, 0.5))
    for name, tried in (momenta | {"pipeline_char_lm": (0.5,)}).items():
        assert "--config.updates=60" in entries.small(name)
        assert f"--config.momentum={tried}" in entries.small(name)
