"""The page: every row has a line, and every figure is drawn."""

import numpy as np
import pandas as pd
import pytest

from experiments.comparison import cures, figure, page, studies, verdicts
from tests.experiments.comparison.verdicts_test import table

GAINS = {
    verdicts.AGAIN: 0.0,
    "DANA": 0.2,
    "DANA, told the mean": 0.15,
    "clipping": 0.004,
    "Kardam's filter": -0.3,
}


@pytest.fixture(scope="module")
def losses():
    both = [table(GAINS), table(GAINS, seed=1).assign(optimizer="adam")]
    whole = pd.concat(both, ignore_index=True)
    whole["numbers"] = "learning_rate=0.1 decay=1"
    for k in (1, 2, 4, 8, 16, 32):
        whole[f"best_of_{k}"] = whole["loss_0"] + 1 / k
    return verdicts.Losses(whole)


def test_the_page_has_the_numbers_of_the_table(losses):
    text = page.text(losses, "jax 0.1, 2026-01-01", {})
    assert "(jax 0.1, 2026-01-01)" in text
    found = verdicts.verdicts(losses)
    assert f"Of {len(found)} rows, {found['seen'].sum()} differ" in text
    for row in found.to_dict("records"):
        gain = f"{row['gain']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"
        p = "<0.001" if row["p_value"] < 0.001 else f"{row['p_value']:.2g}"
        assert f"| {gain} | {p} |" in text
    # what is seen is bold, with its function and its source
    assert "| **DANA** (`dana`, Hakimi et al. 2019) | +" in text
    assert "| clipping (`optax.clip_by_global_norm`) |" in text
    assert "told the mean |" not in text.split("## How it was done")[0]


def test_the_figure_has_a_panel_an_optimizer_and_a_dot_a_rule(losses):
    found = verdicts.verdicts(losses)
    costs = page.costs(losses)
    drawn = figure.draw(found, page.CURES, costs)
    assert [axis.get_title() for axis in drawn.axes] == [
        f"SGD\nlateness: {costs['sgd']:.2f}",
        f"Adam\nlateness: {costs['adam']:.2f}",
    ]
    names = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
    rules = [name for name in GAINS if not name.endswith("mean")]
    kinds = {cures.CURES[0].kind, *(page.CURES[name].kind for name in rules)}
    assert sorted(names) == sorted([*rules, *(kind.upper() for kind in kinds)])
    (gain,) = found.query("optimizer == 'sgd' and rule == 'DANA'")["gain"]
    (dot,) = [line for line in drawn.axes[0].lines if line.get_marker() == "o"]
    assert dot.get_ydata()[0] == names.index("DANA")
    assert dot.get_xdata()[0] == gain


def test_the_expected_best_is_drawn_against_the_number_of_trials(losses):
    drawn = page.trials_figure(losses, [verdicts.PLAIN, "DANA"])
    (line, _) = drawn.axes[0].lines
    np.testing.assert_array_equal(line.get_xdata(), [1, 2, 4, 8, 16, 32])
    late = losses.table.query(
        "optimizer == 'sgd' and rule == 'plain' and cluster != 'no delay'"
    )
    np.testing.assert_allclose(
        line.get_ydata(), late["loss_0"].mean() + 1 / line.get_xdata()
    )


def test_each_rule_has_its_costs():
    rules = {
        own.name
        for own in cures.CURES
        if own not in (cures.BASELINE, cures.AGAIN) and cures.TWIN not in own.name
    }
    found = page.step_costs()
    assert set(found) == rules
    assert found["DANA"][0] == "+4"  # a momentum for each of 5 workers, in place of one


@pytest.mark.long
def test_the_quadratic_has_theory_beside_what_searches_found():
    """Searches whose step is 5 % too large, and measured losses twice the expected."""
    rows, expected = [], []
    for cluster, delay in page.EQUAL.items():
        _, rate, decay = studies.BOWL.least(delay)
        rate *= 1.05  # a search that misses by this
        there = studies.BOWL.expected_loss(delay, rate, decay)
        expected.append(there)
        numbers = f"learning_rate={rate} decay={decay}"
        own = dict(optimizer="sgd", rule=verdicts.PLAIN, cluster=cluster, search=0)
        rows.append(own | {"numbers": numbers, "loss_0": 2 * there, "edges": ""})
    own = verdicts.Losses(pd.DataFrame(rows), in_logarithm=True)
    _, _, *lines = page.theory_table(own)
    for line, there, (cluster, delay) in zip(
        lines, expected, page.EQUAL.items(), strict=True
    ):
        least, *_ = studies.BOWL.least(delay)
        assert line.startswith(f"| {cluster} | {least:.2e} (") and there > least
        assert f"| {there:.2e} ({there / least - 1:+.0%}) | {2 * there:.2e} |" in line


def test_a_further_study_has_its_gains(losses):
    found = verdicts.verdicts(losses)
    lines = list(page.short_table(found))[2:]
    assert len(lines) == len(found)
    for line, row in zip(lines, found.to_dict("records"), strict=True):
        assert f"{row['gain']:+.3f} ({row['low']:+.3f} to" in line
        assert ("**" in line) == row["seen"]


@pytest.mark.long
def test_the_kept_page_is_of_the_stored_tables():
    assert page.PAGE.read_text() == page.stored_text()


README_ROWS = {
    "`dana`: a momentum for each worker": "DANA",
    "`correct_late_updates`": "late updates",
    "one slow momentum, mixed with the gradient": "one slow momentum",
    "average of the weights": "average of the weights",
    "`step_sizes.adadelay`": "AdaDelay",
}


def test_the_readme_s_table_has_the_gains_that_are_seen_and_no_others():
    losses = page.losses_of("digits")
    found = verdicts.verdicts(losses).set_index(["optimizer", "rule"])
    readme = (page.ROOT / "README.md").read_text()
    lines = [line.split("|")[1:-1] for line in readme.splitlines() if "|" in line]
    rows = {first.strip(): [cell.strip() for cell in own] for first, *own in lines}
    optimizers = ("sgd", "adam", "muon")
    costs = page.costs(losses)
    said = rows["what lateness costs plain delay"]
    assert said == [f"{costs[name]:.2f} nats" for name in optimizers]
    for words, rule in README_ROWS.items():
        for optimizer, cell in zip(optimizers, rows[words], strict=True):
            own = (optimizer, rule)
            seen = own in found.index and found.loc[own, "seen"]
            share = f"{100 * found.loc[own, 'share']:.0f} %" if seen else ""
            assert cell == share
    # whatever gains is in the table, and what the sentence names is not seen to
    gains = found[found["seen"] & (found["gain"] > 0)].reset_index()["rule"]
    assert set(gains) == set(README_ROWS.values())
    laws = [name for name in page.CURES if "law" in name or "DC-ASGD" in name]
    rest = found[[rule in laws for _, rule in found.index]]
    assert not (rest["seen"] & (rest["gain"] > 0)).any()
