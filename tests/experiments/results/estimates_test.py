"""The jackknife over seeds, against formulas and by simulation."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.results.choice import Choice
from experiments.results.estimates import Estimate, estimate
from experiments.results.measures import tuned
from experiments.results.tables import Found


def table(values):
    rows = [("a", seed, own) for seed, own in enumerate(values)]
    return pd.DataFrame(rows, columns=["arm", "seed", "train_loss"])


def found(values, choice=None):
    curves = table(values).assign(update=1)
    return Found(table(values), curves, choice or Choice())


def mean(found):
    return found.results["train_loss"].mean()


def test_of_a_mean_it_is_the_usual_standard_error():
    values = np.array([1.0, 2.0, 4.0, 8.0])
    own = estimate(mean, found(values))
    assert own.value == values.mean() and own.seeds == 4
    assert own.error == pytest.approx(values.std(ddof=1) / np.sqrt(4))
    low, high = own.interval()
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high))


def test_of_a_ratio_of_means_it_is_the_formula_of_the_delta_method():
    rng = np.random.default_rng(0)
    above, below = 3.0 + 0.1 * rng.normal(size=(2, 2000))

    def ratio(found):
        rows = found.results["seed"]
        return above[rows].mean() / below[rows].mean()

    own = estimate(ratio, found(above))
    r = above.mean() / below.mean()
    residual = (above - r * below) / below.mean()
    assert own.error == pytest.approx(residual.std() / np.sqrt(2000), rel=0.01)


def test_curves_lose_the_seed_too():
    def both(found):
        assert set(found.results["seed"]) == set(found.curves["seed"])
        return len(found.curves)

    assert estimate(both, found([1.0, 2.0, 3.0])).value == 3


def test_one_seed_has_no_interval():
    own = estimate(mean, found([2.0]))
    assert own.value == 2.0 and np.isnan(own.error)
    assert np.isnan(own.interval()).all()


@pytest.mark.parametrize("values", [[np.inf] * 3, [1.0, 2.0, np.inf]])
def test_an_infinite_number_has_no_interval(values):
    own = estimate(mean, found(values))
    assert own.value == np.inf and np.isnan(own.error) and own.seeds == 3
    assert np.isnan(own.interval()).all()


def test_a_number_that_one_part_makes_infinite_has_no_interval():
    """Without seed 0 none has a loss of at least 8."""

    def eight_over_most(found):
        most = found.results["train_loss"].max()
        return 8.0 / most if most >= 8.0 else np.inf

    own = estimate(eight_over_most, found([8.0, 2.0, 1.0]))
    assert own.value == 1.0 and np.isnan(own.error)


def test_each_part_chooses_its_best_value_where_the_reported_seeds_choose():
    """Seed 2 alone makes step 1 best; without it step 2 is."""
    losses = {1: (3.0, 3.0, 0.0), 2: (2.5, 2.5, 2.5)}
    rows = [
        (step, seed, loss)
        for step, own in losses.items()
        for seed, loss in enumerate(own)
    ]
    results = pd.DataFrame(rows, columns=["step", "seed", "train_loss"])
    curves = results.iloc[:0]
    measure = tuned("train_loss")
    chosen = estimate(measure, Found(results, curves, Choice(("step",))))
    # without seed 0, without seed 1: step 1, (3 + 0) / 2; without seed 2: step 2
    parts = np.array([1.5, 1.5, 2.5])
    expected = np.sqrt(2 / 3 * ((parts - parts.mean()) ** 2).sum())
    assert chosen.value == 2.0 and chosen.error == pytest.approx(expected)
    # where seeds of their own choose, the choice stays
    tuning = results.assign(seed=results["seed"] + 1000)
    own = Choice(("step",), results=tuning, curves=curves)
    assert estimate(measure, Found(results, curves, own)).error == pytest.approx(1.0)


@pytest.mark.parametrize("seeds", [5, 8])
def test_the_interval_of_a_ratio_covers_as_often_as_it_says(seeds):
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        above = 2.0 * np.exp(0.3 * rng.normal(size=seeds))
        below = np.exp(0.3 * rng.normal(size=seeds))
        own = _ratio(above, below)
        low, high = own.interval()
        hits += low <= 2.0 <= high
    assert 0.92 <= hits / 400 <= 0.98


def _ratio(above, below) -> Estimate:
    def measure(found):
        rows = found.results["seed"].to_numpy()
        return above[rows].mean() / below[rows].mean()

    return estimate(measure, found(above))
