"""docs/lost_or_saved.py: its table from curves, and what pages quote of it."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from docs import lost_or_saved
from tests.support.commands import ROOT

KEPT = pd.read_csv(ROOT / "docs" / "lost_or_saved.csv")


def curves(delay, updates):
    """Loss = 1 / update, more by 0.1 a late update, by a seed's own and by a bad step.

    Late runs of shown seeds are better by 0.5 with steps that are bad for the others.
    """
    rows = []
    for name, (_, rates) in lost_or_saved.OPTIMIZERS.items():
        for seed in range(lost_or_saved.SHOWN + lost_or_saved.TUNING):
            for rate in rates:
                shown, best = seed < lost_or_saved.SHOWN, rate == rates[1]
                wrong = 0.0 if best else (-0.5 * delay if shown else 0.5)
                for update in range(0, updates + 1, lost_or_saved.EVERY):
                    loss = 1 / max(update, 1) + 0.1 * delay + 0.01 * seed + wrong
                    rows.append((name, seed, rate, update, loss))
    names = ["optimizer", "seed", "learning_rate", "update", "test_loss"]
    return pd.DataFrame(rows, columns=names)


def test_the_table_is_of_equal_time_at_the_step_that_other_seeds_choose(monkeypatch):
    monkeypatch.setattr(lost_or_saved, "trained", curves)
    table, updates = lost_or_saved.table(), lost_or_saved.UPDATES
    for name in lost_or_saved.OPTIMIZERS:
        rows = table[table["optimizer"] == name]
        late = updates / (1 - rows["saved"] / 100)  # in the time of `updates`
        assert late.iloc[0] == updates and late.iloc[-1] == 2 * updates
        expected = 0.1 + 1 / late - 1 / updates
        for column in ("lost", "low", "high"):  # seeds differ by the same
            np.testing.assert_allclose(rows[column], expected, atol=1e-12)


def test_an_interval_is_student_s(monkeypatch):
    noise = np.random.default_rng(0).normal(size=lost_or_saved.SHOWN)

    def noisy(delay, updates):
        rows = curves(delay, updates)
        of_seed = rows["seed"].map(dict(enumerate(noise))).fillna(0.0)
        return rows.assign(test_loss=rows["test_loss"] + delay * of_seed)

    monkeypatch.setattr(lost_or_saved, "trained", noisy)
    row = lost_or_saved.table().iloc[0]
    low, high = stats.t.interval(
        0.95, len(noise) - 1, noise.mean() + 0.1, stats.sem(noise)
    )
    assert (row["low"], row["high"]) == pytest.approx((low, high), abs=1e-3)


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
    saved = {}
    for name in ("v5e:4x4", "h100:1x1x8", "2*v5e:4x4"):
        (row,) = re.findall(rf"^\| {re.escape(name)}\D.*\+.*$", pods, re.MULTILINE)
        (late, fresh) = re.findall(r"([\d.]+) \+ ([\d.]+)", row)
        saved[name] = 100 * (1 - sum(map(float, late)) / sum(map(float, fresh)))
    costs = (ROOT / "docs" / "costs.md").read_text()
    (row,) = re.findall(r"^\| 0 \| 10M \|.*$", costs, re.MULTILINE)
    *_, synchronous, overlapped, _, _, _ = row.strip("| ").split(" | ")
    saved["100 Mbit/s"] = 100 * (1 - float(overlapped) / float(synchronous))
    places = ["a slice of v5e", "eight H100", "two slices", "100 Mbit/s"]
    for place, exact in zip(places, saved.values(), strict=True):
        assert lost_or_saved.PLACES[place] == round(exact)


def test_the_picture_has_a_line_for_each_optimizer_and_names_the_places():
    figure = lost_or_saved.draw(KEPT)
    (axis,) = figure.axes
    drawn = [line for line in axis.get_lines() if line.get_label()[0] != "_"]
    for line in drawn:
        rows = KEPT[KEPT["optimizer"] == line.get_label()]
        np.testing.assert_array_equal(line.get_xydata(), rows[["saved", "lost"]])
    assert [line.get_label() for line in drawn] == list(lost_or_saved.OPTIMIZERS)
    words = {text.get_text() for text in axis.texts}
    assert words >= {*lost_or_saved.PLACES, "waiting is better", "late is better"}
