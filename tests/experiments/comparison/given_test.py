"""Rules of a user: found by name, tried before a search, refused when changed."""

import dataclasses

import jax.numpy as jnp
import optax
import pytest

from experiments import tasks
from experiments.comparison import (
    cures,
    given,
    page,
    search,
    studies,
    study,
    trials,
    verdicts,
)
from experiments.comparison.spaces import Range

SHORT = search.Effort(rounds=(search.Round(4, 1),), finalists=1, confirming=1)


def times(factor):
    return lambda trial: trial.descent(after=[optax.scale(factor)])


def mine(make=None, **options):
    return cures.Cure("mine", make or times(0.5), **{"at_constant": False} | options)


def of(*rows):
    late = {name: trials.clusters()[name] for name in ("no delay", "memoryless, 4")}
    task = tasks.quadratic((0.1, 1.0), noise=0.1)
    setting = trials.Setting(task, budget=20, clusters=late)
    sgd = {"sgd": cures.OPTIMIZERS["sgd"]}
    return study.Study(setting, sgd, rows, effort=SHORT, searches=2, reporting=3)


NAN = times(jnp.nan)
MODULE = """
import optax
from experiments.comparison.cures import Cure
mine = Cure("mine", lambda trial: trial.descent(after=[optax.scale(0.5)]))
taken = Cure("plain", mine.make)
unkind = Cure("unkind", mine.make, kind="hello")
tx = optax.sgd(0.1)
none = []
twice = [mine, mine]
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "rules_of_a_user.py").write_text(MODULE)
    (tmp_path / "raises_at_once.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_cure_is_found_by_its_name(module):
    (found,) = given.named("rules_of_a_user:mine")
    assert found.name == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules_of_a_user", "must be module:name"),
        ("rules_of_nobody:mine", "ModuleNotFoundError.* set PYTHONPATH"),
        ("raises_at_once:mine", r"\(ZeroDivisionError: division by zero\)"),
        ("rules_of_a_user:other", r"got NoneType: .* cures are \['mine', 'taken'"),
        ("rules_of_a_user:tx", r"got GradientTransformation\w*: wrap an Optax rule"),
        ("rules_of_a_user:none", "got an empty list"),
        ("rules_of_a_user:taken", "the name 'plain' is taken"),
        ("rules_of_a_user:twice", "the name 'mine' is taken"),
        ("rules_of_a_user:unkind", "`kind` must be one of .* got 'hello'"),
    ],
)
def test_what_is_no_cure_is_refused(text, message, module):
    with pytest.raises(ValueError, match=message):
        given.named(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (NAN, "'mine' with sgd must give a finite loss, got nan after 2 updates"),
        (lambda trial: 7, "'mine' with sgd cannot be trained: .*Error"),
        (
            lambda trial: trial.descent(after=[optax.scale(trial.own)]),
            "cannot be trained: ValueError: `trial.own` needs a range",
        ),
    ],
)
def test_a_rule_that_does_not_train_is_refused_before_a_search(make, message, tmp_path):
    table = study.Stored(tmp_path / "mine.csv").read()
    with pytest.raises(ValueError, match=message):
        given.check(of(mine(make)), table)


@pytest.mark.parametrize(
    ("at_constant", "searches", "said"),
    [
        (False, 48, "48 searches for a law"),
        (True, 72, "72 for a rule that also stands at constant delays"),
    ],
)
def test_a_rule_is_searched_as_often_as_the_page_says(at_constant, searches, said):
    whole = studies.digits("full", [mine(at_constant=at_constant)])
    few = given.in_few_searches(whole.of_optimizers_with_rules())
    assert [cell.rule for cell in few.cells()].count("mine") == searches
    text = (page.ROOT / "docs/howto/own_rule.md").read_text()
    assert said in " ".join(text.split())


def test_a_rule_that_was_changed_is_refused(tmp_path):
    stored = study.Stored(tmp_path / "mine.csv")
    table = study.complete(of(mine()), stored, say=lambda text: None)
    given.check(of(mine()), table)
    changed = times(0.4), lambda trial: trial.descent(after=[optax.scale(trial.own)])
    for make, own in zip(changed, ({}, {"own": Range(0.1, 2.0)}), strict=True):
        with pytest.raises(ValueError, match="'mine' with sgd gives another loss"):
            given.check(of(mine(make, space=own)), table)
    # a copy of the rule is the rule
    given.check(of(dataclasses.replace(mine(), source="mine")), table)


def test_what_came_out_is_a_sentence(tmp_path):
    stored = study.Stored(tmp_path / "mine.csv")
    table = study.complete(of(mine()), stored, say=lambda text: None)
    found = verdicts.verdicts(verdicts.Losses(table))
    (line,) = given.said(found.assign(seen=False), ["mine"])
    assert line.startswith("sgd, mine: a gain over plain of ")
    assert "nats on 1 clusters" in line and "cannot be told from plain." in line
    for gain, what in ((1.0, "it helps."), (-1.0, "it makes plain worse.")):
        (line,) = given.said(found.assign(seen=True, gain=gain), ["mine"])
        assert what in line and f"{gain:+.3f} (" in line


def test_two_searches_cannot_share_a_table(tmp_path):
    stored = study.Stored(tmp_path / "mine.csv")
    again = study.Stored(stored.path)
    message = "mine.csv is in use by another search"
    with stored.locked(), pytest.raises(ValueError, match=message), again.locked():
        pass
    with study.Stored(stored.path).locked():
        pass
