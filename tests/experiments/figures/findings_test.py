"""Titles state only findings that the intervals allow."""

import pandas as pd
import pytest

from experiments.figures import findings


def table(means, half, *, lost=False, seeds=3, labels=("",)):
    """A row for each label and mean, at delays 0, 1, and so on."""
    rows = [
        (label, label, delay, mean, mean - half, mean + half, seeds, lost)
        for label in labels
        for delay, mean in enumerate(means)
    ]
    columns = ["label", "name", "delay", "mean", "low", "high", "seeds", "lost"]
    return pd.DataFrame(rows, columns=columns)


def trend(rows, less_is_better=True):
    return findings.over(rows, "delay", "test error", less_is_better=less_is_better)


@pytest.mark.parametrize(
    ("means", "verb"), [((1.0, 2.0, 4.0), "rises"), ((4.0, 2.0, 1.0), "falls")]
)
def test_a_series_rises_or_falls_if_the_intervals_of_its_ends_are_apart(means, verb):
    sentence = f"Test error {verb} from {means[0]:g} to {means[-1]:g} over delay 0 to 2"
    assert trend(table(means, 1.49)) == sentence
    assert trend(table(means, 1.51)) == ""


@pytest.mark.parametrize("means", [(1.0, 0.5, 4.0), (1.0, 5.0, 4.0), (2.0,)])
def test_a_valley_a_peak_or_one_value_neither_rises_nor_falls(means):
    assert trend(table(means, 0.01)) == ""


def test_a_mean_between_may_lie_beyond_an_end_as_far_as_intervals_overlap():
    sentence = "Test error rises from 1 to 4 over delay 0 to 3"
    assert trend(table((1.0, 0.95, 4.03, 4.0), 0.04)) == sentence
    assert trend(table((1.0, 0.91, 4.0, 4.0), 0.04)) == ""
    assert trend(table((1.0, 4.09, 4.0, 4.0), 0.04)) == ""


@pytest.mark.parametrize("options", [{"lost": True}, {"seeds": 1}])
def test_nothing_is_said_of_one_seed_or_of_what_is_lost(options):
    assert trend(table((1.0, 2.0), 0.1, **options)) == ""
    assert findings.least(table((1.0, 2.0), 0.1, **options), "test error") == ""


def test_the_least_of_several_is_named_if_its_interval_is_below_all_others():
    def rows(half):
        tables = [
            table((9.0, m), half, labels=(n,))
            for n, m in zip("abc", (3, 1, 2), strict=True)
        ]
        return pd.concat(tables, ignore_index=True)

    assert trend(rows(0.49)) == "b has the least test error at delay=1, 1"
    assert trend(rows(0.51)) == ""
    # where more is better, the title does not name the least
    assert trend(rows(0.49), less_is_better=False) == ""
