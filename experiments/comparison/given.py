"""Rules of a user: found by name, tried, and checked against a table's rows."""

import dataclasses
import importlib
import sys
from collections.abc import Iterator

import numpy as np
import pandas as pd

from experiments.comparison import cures, spaces
from experiments.comparison.cures import AGAIN, BASELINE, KINDS, Cure
from experiments.comparison.study import REPORTED, Study, read_numbers

_SEARCHES = 4  # of a row on a cluster, at most
_TRIED = 2  # updates
_SAME = 1e-3  # relative difference of two losses of one training


def named(text: str) -> list[Cure]:
    """The cures that "module:name" names.

    Raises:
        ValueError: if there is no such module or name, it is no `Cure`, or a name or a
            kind is taken or unknown.
    """
    module, _, name = text.partition(":")
    if not (module and name):
        raise ValueError(f"--cures must be module:name, got {text!r}.")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module of the folder that one is in
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:
        raise ValueError(
            f"--cures={text}: the module {module} cannot be imported"
            f" ({type(error).__name__}: {error}): run in its folder, or set PYTHONPATH."
        ) from error
    own = list(found) if type(found) in (list, tuple) else [found]
    wrong = [each for each in own if not isinstance(each, Cure)]
    if wrong or not own:
        known = [
            key
            for key, value in vars(sys.modules[module]).items()
            if isinstance(value, Cure)
        ]
        raise ValueError(
            f"--cures={text} must be a Cure or a list of some, got"
            f" {type(own[0]).__name__ if own else 'an empty list'}: wrap an Optax rule,"
            " Cure(name, lambda trial: trial.descent(after=[rule()])). The module's"
            f" cures are {known}."
        )
    taken = {BASELINE.name, AGAIN.name} | {cure.name for cure in cures.CURES}
    for cure in own:
        if cure.name in taken:
            raise ValueError(
                f"--cures={text}: the name {cure.name!r} is taken: give another one."
            )
        taken.add(cure.name)
        if cure.kind not in KINDS:
            raise ValueError(
                f"--cures={text}: `kind` must be one of {list(KINDS)}, got"
                f" {cure.kind!r}."
            )
    return own


def in_few_searches(study: Study) -> Study:
    """The study with four searches of each row: a look at a rule takes minutes."""
    return dataclasses.replace(study, searches=min(study.searches, _SEARCHES))


def check(study: Study, table: pd.DataFrame) -> None:
    """Tries each rule for two updates, and trains a row of the table once more.

    Raises:
        ValueError: if a rule cannot be trained, gives no number, or gives another loss
            than the table has: then the rule was changed since.
    """
    for (name, rule), (optimizer, cure) in study.rows.items():
        if cure in (BASELINE, AGAIN):
            continue
        own = f"The rule {rule!r} with {name}"
        setting = dataclasses.replace(study.setting, budget=_TRIED)
        space = cure.whole_space(optimizer)
        middle = spaces.values(space, np.full((1, len(space)), 0.5))
        cluster = list(study.clusters_of(cure))[-1]
        try:
            (loss,) = setting.losses(
                optimizer, cure, cluster, middle, seed=0, capped=False
            )
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"{own} cannot be trained: {type(error).__name__}: {first}"
            ) from error
        if not np.isfinite(loss):
            raise ValueError(
                f"{own} must give a finite loss, got {loss} after {_TRIED} updates in"
                " the middle of its ranges."
            )
        rows = table[(table["optimizer"] == name) & (table["rule"] == rule)]
        for row in rows.head(1).to_dict("records"):
            numbers = read_numbers(row["numbers"])
            same = set(numbers) == set(space) and np.isclose(
                study.setting.losses(
                    optimizer,
                    cure,
                    row["cluster"],
                    {key: np.array([value]) for key, value in numbers.items()},
                    REPORTED,
                )[0],
                float(row["loss_0"]),
                rtol=_SAME,
            )
            if not same:
                raise ValueError(
                    f"{own} gives another loss than its rows in the table: it was"
                    " changed since. Name another file, or delete these rows."
                )


def said(found: pd.DataFrame, names: list[str]) -> Iterator[str]:
    """What came out for these rules, a sentence for each optimizer."""
    for row in found[found["rule"].isin(names)].to_dict("records"):
        what = "this cannot be told from plain"
        if row["seen"]:
            what = "it helps" if row["gain"] > 0 else "it makes plain worse"
        knows = ""
        if np.isfinite(row["over_twin"]):
            knows = (
                f" Of it {row['over_twin']:+.3f} ({row['over_twin_low']:+.3f} to"
                f" {row['over_twin_high']:+.3f}) is gained by knowing the delay."
            )
        edges = f" At an end of its range: {row['edges']}." if row["edges"] else ""
        yield (
            f"{row['optimizer']}, {row['rule']}: a gain over plain of"
            f" {row['gain']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f}) nats on"
            f" {row['clusters']} clusters, where plain differs from plain by"
            f" {row['band']:.3f}: {what}.{knows}{edges}"
        )
