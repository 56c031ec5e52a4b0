"""Statements beside a config: read, recorded, and refused in one line."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments import claims, statements
from experiments.config_files import ConfigFile
from experiments.results import measures
from experiments.results.runs import Run

CONFIG = """
from ml_collections import ConfigDict

def get_config(question="small"):
    return ConfigDict(dict(question=question))

def experiment(config):
    raise AssertionError
"""
STATED = """
from experiments import claims, measures

def published(config):
    return [claims.Published(text="It is small", source="Doe", said="small",
                             measure=measures.mean("train_loss"), at_most=1.0)]

def records(config):
    return {"Loss, %s" % config.question: measures.mean("train_loss")}
"""


@pytest.fixture
def source(tmp_path):
    (tmp_path / "statements").mkdir()
    (tmp_path / "mine.py").write_text(CONFIG)
    (tmp_path / "statements" / "mine.py").write_text(STATED)
    return str(tmp_path / "mine.py")


def result(*losses):
    rows = [(seed, loss) for seed, loss in enumerate(losses)]
    return Run(pd.DataFrame(rows, columns=["seed", "train_loss"]), pd.DataFrame())


def stated(source):
    file = ConfigFile.load(source)
    return statements.about(file, file.config)


def recorded(source, *losses):
    return statements.record(
        ConfigFile.load(source), claims.compare(stated(source).records, result(*losses))
    )


def test_a_config_is_executed_once_until_its_file_changes(source, tmp_path):
    log = tmp_path / "log"
    count = f"\nwith open({str(log)!r}, 'a') as file:\n    file.write('.')\n"
    Path(source).write_text(CONFIG + count)
    path = tmp_path / "statements" / "mine.py"
    known = "from experiments import statements\nstatements.config_of(__file__)\n"
    path.write_text(known + STATED)
    stated(source)
    stated(source)
    assert log.read_text() == "."
    Path(source).write_text(CONFIG + 2 * count)
    stated(source)
    assert log.read_text() == "..."


def test_a_config_without_statements_has_none(tmp_path):
    (tmp_path / "mine.py").write_text(CONFIG)
    assert stated(str(tmp_path / "mine.py")) == statements.Statements()


def test_a_record_is_what_the_run_measured_and_is_met_by_the_same_run(source):
    (before,) = claims.compare(stated(source).records, result(0.1, 0.3))
    assert not before.met and "--record keeps it" in str(before)
    path = recorded(source, 0.1, 0.3)
    (record,) = stated(source).records
    assert path.name == "records.csv" and record.value == pytest.approx(0.2)
    assert record.spread == pytest.approx(
        np.std([0.1, 0.3], ddof=1) / np.sqrt(2), rel=1e-3
    )
    (after,) = claims.compare(stated(source).records, result(0.1, 0.3))
    assert after.met


def test_the_record_of_one_seed_has_no_spread_and_can_be_read(source):
    recorded(source, 0.25)
    (record,) = stated(source).records
    assert (record.value, record.spread) == (0.25, 0.0)


@pytest.mark.parametrize("losses", [(np.nan, 0.1), (np.inf, 0.1)])
def test_what_is_no_number_is_not_recorded_and_nothing_is_lost(source, losses):
    path = recorded(source, 0.25)
    kept = path.read_text()
    with pytest.raises(ValueError, match=r"'Loss, small' is .*nothing is written"):
        recorded(source, *losses)
    assert path.read_text() == kept


def test_a_ratio_of_times_of_which_one_is_never_reached_is_not_recorded(source):
    """The ratio is 0, which is no number to record."""
    (record,) = stated(source).records
    ratio = measures.ratio(lambda result: 3.0, lambda result: np.inf)
    measured = claims.compare(
        [dataclasses.replace(record, measure=ratio)], result(0.1, 0.3)
    )
    with pytest.raises(ValueError, match="nothing is written"):
        statements.record(ConfigFile.load(source), measured)


def test_each_question_has_records_and_the_usual_one_needs_no_name(source):
    recorded(source, 0.25)
    path = recorded(f"{source}:large", 0.5)
    table = pd.read_csv(path)
    assert table["config"].tolist() == ["mine", "mine:large"]
    assert stated(f"{source}:small").records[0].value == 0.25
    assert recorded(source, 0.75) == path
    assert pd.read_csv(path)["value"].tolist() == [0.75, 0.5]


def test_a_record_that_is_there_twice_is_named(source):
    path = Path(source).parent / "statements" / "records.csv"
    path.write_text("config,record,value,spread\nmine,Loss,0.2,0\nmine,Loss,0.3,0\n")
    with pytest.raises(ValueError, match=r"records.csv has mine, Loss twice"):
        stated(source)


@pytest.mark.parametrize(
    "body",
    [
        "def records(config):\n    return [1]\n",
        "def published(config):\n    return 3\n",
        "def published(config):\n    return config.absent\n",
    ],
)
def test_a_file_that_fails_is_named_with_what_its_functions_return(source, body):
    (Path(source).parent / "statements" / "mine.py").write_text(body)
    with pytest.raises(ValueError, match=r"statements/mine\.py.*returns a list of"):
        stated(source)
