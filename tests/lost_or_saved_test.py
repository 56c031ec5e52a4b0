"""docs/lost_or_saved.py: its table from results, and what pages quote of it."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from configs import one_late
from docs import lost_or_saved
from tests.support.commands import ROOT

KEPT = pd.read_csv(ROOT / "docs" / "lost_or_saved.csv")


def results():
    """Loss = 1 / updates, more by 0.1 a late update, by a seed, and by a wrong step.

    The training loss chooses; late runs of shown seeds have a test loss that is better
    by 0.5 with steps that are wrong for the others.
    """
    rows = []
    for (name, delay), (step, _) in lost_or_saved.FOUND.items():
        for longer in lost_or_saved.LATE if delay else (1.0,):
            for factor in lost_or_saved.FACTORS:
                for seed in range(lost_or_saved.SHOWN + lost_or_saved.TUNING):
                    wrong = factor != lost_or_saved.FACTORS[1]
                    loss = 1 / (400 * longer) + 0.1 * delay + 0.01 * seed
                    tuning = seed >= lost_or_saved.SHOWN
                    train = loss + 0.5 * wrong if tuning else loss - 0.5 * wrong
                    test = loss - 0.5 * wrong * delay
                    cell = name, delay, longer, step * factor, seed
                    rows.append((*cell, train, test))
    names = ["optimizer", "delay", "longer", "learning_rate", "seed"]
    return pd.DataFrame(rows, columns=[*names, "train_loss", "test_loss"])


def test_the_table_is_of_equal_time_at_the_step_that_other_seeds_choose(monkeypatch):
    monkeypatch.setattr(lost_or_saved, "trained", results)
    table = lost_or_saved.table()
    for name in one_late.OPTIMIZERS:
        rows = table[table["optimizer"] == name]
        late = 400 / (1 - rows["saved"] / 100)  # in the time of 400
        assert late.iloc[0] == 400 and late.iloc[-1] == 800
        expected = 0.1 + 1 / late - 1 / 400
        for column in ("lost", "low", "high"):  # seeds differ by the same
            np.testing.assert_allclose(rows[column], expected, atol=1e-12)


def test_an_interval_is_student_s(monkeypatch):
    noise = np.random.default_rng(0).normal(size=lost_or_saved.SHOWN)

    def noisy():
        rows = results()
        of_seed = rows["seed"].map(dict(enumerate(noise))).fillna(0.0)
        return rows.assign(test_loss=rows["test_loss"] + rows["delay"] * of_seed)

    monkeypatch.setattr(lost_or_saved, "trained", noisy)
    row = lost_or_saved.table().iloc[0]
    low, high = stats.t.interval(
        0.95, len(noise) - 1, noise.mean() + 0.1, stats.sem(noise)
    )
    assert (row["low"], row["high"]) == pytest.approx((low, high), abs=1e-3)


def test_runs_are_as_long_as_their_time_allows_and_have_the_searched_momentum(
    monkeypatch,
):
    seen = []
    monkeypatch.setattr(lost_or_saved, "run", seen.append)
    with pytest.raises(AttributeError):
        lost_or_saved.trained()
    (experiment,) = seen
    arms = [
        (a.labels["optimizer"], a.grid["delay"], a.updates) for a in experiment.arms
    ]
    assert arms == [
        (name, delay, updates)
        for name in ("Adam", "Muon")
        for delay, updates in [((0,), 400), *(((1,), n) for n in (400, 480, 640, 800))]
    ]
    for arm in experiment.arms:
        step, decay = lost_or_saved.FOUND[arm.labels["optimizer"], *arm.grid["delay"]]
        assert arm.grid["decay"] == (decay,) and step in arm.grid["learning_rate"]


@pytest.mark.parametrize("page", ["README.md", "docs/howto/one_step_late.md"])
def test_quoted_losses_stand_in_the_kept_table(page):
    """0.041 nats (-0.035 to 0.117); a gain is a loss with its sign changed."""
    text = " ".join((ROOT / page).read_text().split())
    kept = [tuple(row) for row in KEPT[["lost", "low", "high"]].to_numpy()]
    kept += [(-lost, -high, -low) for lost, low, high in kept]
    number = r"(-?\d\.\d{3})"
    quoted = re.findall(rf"{number}(?: nats)? \({number} to {number}\)", text)
    assert len(quoted) >= 2
    for values in quoted:
        assert tuple(map(float, values)) in kept


def test_the_places_are_those_of_the_tables():
    pods = (ROOT / "docs" / "pods.md").read_text()
    (row,) = re.findall(r"^\| h100:1x1x8\D.*\+.*$", pods, re.MULTILINE)
    late, fresh = re.findall(r"([\d.]+) \+ ([\d.]+)", row)
    hosts = 100 * (1 - sum(map(float, late)) / sum(map(float, fresh)))
    (slices,) = re.findall(r"without it lateness would save (\d+) %", pods)
    costs = (ROOT / "docs" / "costs.md").read_text()
    (row,) = re.findall(r"^\| 0 \| 10M \|.*$", costs, re.MULTILINE)
    *_, synchronous, overlapped, _, _, _ = row.strip("| ").split(" | ")
    link = 100 * (1 - float(overlapped) / float(synchronous))
    assert {
        "eight H100": round(hosts),
        "two slices of v5e": int(slices),
        "100 Mbit/s": round(link),
    } == lost_or_saved.PLACES


def test_the_picture_has_a_line_for_each_optimizer_and_names_the_places():
    figure = lost_or_saved.draw(KEPT)
    (axis,) = figure.axes
    drawn = [line for line in axis.get_lines() if line.get_label()[0] != "_"]
    for line in drawn:
        rows = KEPT[KEPT["optimizer"] == line.get_label()]
        np.testing.assert_array_equal(line.get_xydata(), rows[["saved", "lost"]])
    assert [line.get_label() for line in drawn] == list(one_late.OPTIMIZERS)
    words = {text.get_text() for text in axis.texts}
    assert words >= {*lost_or_saved.PLACES, "waiting is better", "late is better"}
