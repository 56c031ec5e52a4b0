"""Verdicts: a gain that is there is seen, and luck is not."""

import numpy as np
import pandas as pd
import pytest

from experiments.comparison import verdicts
from experiments.comparison.clusters import NO_DELAY
from experiments.comparison.verdicts import AGAIN, PLAIN, Losses

SEARCHES, SEEDS = 4, 20
LATE = ("constant, 4", "memoryless, 4")
GAINS = {AGAIN: 0.0, "strong": 0.2, "weak": 0.004, "harmful": -0.3}
COST, BASE = 0.5, 1.0


def table(gains=GAINS, *, without=0.0, seed=0):
    """Losses with effects of searches, of seeds and a rest of known sizes."""
    rng = np.random.default_rng(seed)
    seeds = 0.05 * rng.normal(size=SEEDS)
    rows = []
    for rule, gain in {PLAIN: 0.0, **gains}.items():
        for cluster in (NO_DELAY, *LATE):
            for search in range(SEARCHES):
                loss = BASE + COST - gain if cluster in LATE else BASE - without
                if cluster == NO_DELAY and rule not in (PLAIN, "strong"):
                    continue
                if cluster == NO_DELAY and rule == PLAIN:
                    loss = BASE
                lucky = 0.005 * rng.normal()
                each = loss + lucky + seeds + 0.01 * rng.normal(size=SEEDS)
                rows.append(
                    {
                        "optimizer": "sgd",
                        "rule": rule,
                        "cluster": cluster,
                        "search": search,
                        "edges": "own high" if rule == "weak" else "decay off",
                        **{f"loss_{i}": own for i, own in enumerate(each)},
                    }
                )
    return pd.DataFrame(rows)


def test_gains_costs_and_shares_are_those_of_the_table():
    found = verdicts.verdicts(Losses(table())).set_index("rule")
    for rule, gain in GAINS.items():
        row = found.loc[rule]
        assert row.low <= gain <= row.high
        assert row.gain == pytest.approx(gain, abs=0.01)
        assert row.share == pytest.approx(gain / COST, abs=0.03)
        assert row.loss == pytest.approx(BASE + COST - gain, abs=0.05)
    assert found.loc["strong"].without_delay == pytest.approx(0.0, abs=0.01)
    assert np.isnan(found.loc["weak"].without_delay)


def test_what_is_within_two_bands_is_not_seen():
    for seed in range(5):
        found = verdicts.verdicts(Losses(table(seed=seed))).set_index("rule")
        assert found.seen.to_dict() == {
            **{AGAIN: False, "strong": True, "weak": False, "harmful": True}
        }
        assert 0 < found.band.max() < 0.03


def test_what_helps_without_delay_too_is_told_apart():
    found = verdicts.verdicts(Losses(table(without=0.2))).set_index("rule")
    assert found.loc["strong"].without_delay == pytest.approx(0.2, abs=0.01)
    # the share counts from the best row without delay, here the rule itself
    share = GAINS["strong"] / (COST + 0.2)
    assert found.loc["strong"].share == pytest.approx(share, abs=0.03)


def test_the_twin_says_what_knowing_the_delay_gains():
    losses = Losses(table({**GAINS, "strong, told the mean": 0.15}))
    found = verdicts.verdicts(losses).set_index("rule")
    assert "strong, told the mean" not in found.index
    row = found.loc["strong"]
    assert row.over_twin_low <= 0.05 <= row.over_twin_high
    assert row.over_twin == pytest.approx(0.05, abs=0.01)


def test_an_optimum_on_an_edge_is_counted():
    found = verdicts.verdicts(Losses(table())).set_index("rule")
    assert found.loc["weak"].edges == "own high: 8 of 8"
    assert found.loc["strong"].edges == ""  # an end that is off is an answer


def test_halves_of_the_searches_agree_where_rows_differ():
    gains = {AGAIN: 0.0, **{f"rule {i}": 0.05 * i for i in range(6)}}
    assert verdicts.agreement(Losses(table(gains))) == 1.0


def test_tables_of_shards_may_repeat_plain():
    once, twice = table(), pd.concat([table(), table()])
    pd.testing.assert_frame_equal(
        verdicts.verdicts(Losses(once)), verdicts.verdicts(Losses(twice))
    )
