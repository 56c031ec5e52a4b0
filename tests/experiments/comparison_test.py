"""Rules on equal terms: the same trials for each, and what each wins back."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

from experiments import Run, tasks
from experiments.comparison import NO_DELAY, PLAIN, Comparison, clusters, cures
from tests.support.training_runs import NOISY

RATES = (0.01, 1.0)
SGD = cures.Optimizer(optax.trace, 0.9, RATES)
CLUSTERS = clusters((1, 4))
NUMBERS = {name: i for i, name in enumerate(CLUSTERS)}


def compared(*names, **changes):
    """A comparison of rules by name."""
    chosen = tuple(cure for cure in cures.CURES if cure.name in names)
    given = dict(task=NOISY, optimizers={"sgd": SGD}, clusters=CLUSTERS, trials=4)
    return Comparison(**{**given, "cures": chosen, **changes})


def arms(*names, **changes):
    made = compared(*names, **changes).arms()
    return {arm.labels["rule"]: arm for arm in made}


def steps(tx):
    """The updates of a few gradients of staleness 0, 9, 0, 9, ... of three workers."""
    params = jnp.array([1.0, -2.0])

    def step(carry, t):
        params, state = carry
        stale = params * (1.0 + 0.5 * (t % 2))
        update, state = tx.update(
            jnp.array([0.3, 1.0]) * stale * (1.0 + 0.1 * t),
            state,
            params,
            staleness=9 * (t % 2),
            stale_params=stale,
            worker=t % 3,
            value=10.0 * jnp.cos(t),
        )
        return (optax.apply_updates(params, update), state), update

    return jax.lax.scan(step, (params, tx.init(params)), jnp.arange(24))[1]


def test_clusters_have_the_mean_staleness_that_they_are_named_for():
    for name, (workers, source) in clusters((4, 16)).items():
        trace = source.trace(0, 2000, float("inf"))
        taus = trace.arrivals(0, 2000).staleness[200:, 0]
        assert trace.max_gradients == 1
        # P - 1 in the mean, over many rounds of all workers
        np.testing.assert_allclose(taus.mean(), workers - 1, rtol=0.03)
        if name.startswith("constant"):
            assert (taus == workers - 1).all()
        if name.startswith("geometric"):
            p = 1 / workers
            np.testing.assert_allclose((taus == 0).mean(), p, rtol=0.35)
        if name.startswith("straggler"):
            assert taus.max() > 3 * (workers - 1)


@pytest.mark.parametrize("delays", [(), (0, 4), (4, 4), (2.5,)])
def test_delays_that_cannot_be_are_refused(delays):
    with pytest.raises(ValueError, match="`delays` must be different positive"):
        clusters(delays)


def test_all_rules_try_the_same_learning_rates_and_plain_alone_knows_no_delay():
    made = arms(*(cure.name for cure in cures.CURES))
    assert len(made) == len(cures.CURES)
    rates = {arm.grid["learning_rate"] for arm in made.values()}
    (rates,) = rates
    np.testing.assert_allclose(
        rates, [0.01 * 100.0**share for share in (0.125, 0.375, 0.625, 0.875)]
    )
    for name, arm in made.items():
        assert (NO_DELAY in arm.grid["cluster"]) == (name == PLAIN)


def test_a_trial_has_a_strength_of_its_own_evenly_in_the_logarithm():
    seen = []

    def make(trial):
        seen.append(trial.strength)
        return optax.sgd(trial.rate)

    own = cures.Cure("own", make, strength=(0.01, 1.0))
    (arm,) = compared(cures=[own]).arms()
    seen.clear()
    for rate in arm.grid["learning_rate"]:
        arm.training.make(rate, 0)
    np.testing.assert_allclose(
        seen, [0.01 * 100.0**share for share in (0.5, 0.25, 0.75, 0.125)], rtol=1e-5
    )


@functools.cache
def moved_by(name):
    """What a rule does, where its rate and its cluster are traced."""
    make = arms(name, task=tasks.quadratic((0.3, 1.0), noise=0.5))[name].training.make
    cluster = NUMBERS["geometric, 4"]
    return jax.jit(lambda rate, own: steps(make(rate, own)))(0.03, cluster)


@pytest.mark.parametrize("name", [cure.name for cure in cures.CURES])
def test_a_rule_does_something_and_its_rate_and_cluster_may_be_traced(name):
    own = moved_by(name)
    assert np.isfinite(own).all() and np.abs(own).max() > 0
    assert np.array_equal(own, moved_by(PLAIN)) == (name == PLAIN)


@pytest.mark.parametrize("name", [PLAIN, "DASA", "Gap-Aware", "DANA", "closed loop"])
def test_half_a_schedule_is_half_a_learning_rate(name):
    """Also where a rule knows the learning rate, as DASA in its threshold."""
    (cure,) = [own for own in cures.CURES if own.name == name]

    def moved(rate, factor):
        trial = cures.Trial(
            *(SGD, rate, lambda step: factor, 25.0 if name == "DASA" else 0.5),
            *(0, [5], lambda params: jnp.sum(params**2)),
        )
        return steps(cure.make(trial))

    half, whole = moved(0.03, 1.0), moved(0.06, 1.0)
    np.testing.assert_allclose(moved(0.06, 0.5), half, rtol=1e-5)
    assert not np.allclose(whole, half, rtol=1e-2)


def test_memory_is_what_the_state_has_more_than_plain_s():
    found = compared(PLAIN, "DC-ASGD-a", "AdaDelay", "DANA").memory()
    # nothing; a mean square; five momenta in place of one; no momentum but a counter
    assert found["sgd", PLAIN] == 0 and found["sgd", "DC-ASGD-a"] == 1
    assert found["sgd", "DANA"] == 4 and -1 < found["sgd", "AdaDelay"] < 0


SEEDS = 5
HALF = cures.Cure("half", lambda t: t.descent(optax.trace(0.5)))
WORSE = cures.Cure("worse", lambda t: t.descent())
TWO = compared(cures=[cures.CURES[0], HALF, WORSE])
LOSSES = {  # plain undelayed, plain, a rule that wins half, one that loses
    (PLAIN, NO_DELAY): 0.1,
    (PLAIN, "constant, 4"): 0.3,
    (PLAIN, "geometric, 4"): 0.5,
    ("half", "constant, 4"): 0.2,
    ("half", "geometric, 4"): 0.3,
    ("worse", "constant, 4"): 0.3,
    ("worse", "geometric, 4"): np.inf,  # diverged: the loss that it began with, 2
}


def finished(tmp_path, spread=0.0):
    """A run whose second step is twice as bad as its first."""
    rows = []
    for (rule, cluster), loss in LOSSES.items():
        for seed in range(SEEDS):
            for rate in (0.1, 1.0):
                rows.append(
                    {
                        "optimizer": "sgd",
                        "rule": rule,
                        "learning_rate": rate,
                        "cluster": cluster,
                        "seed": seed,
                        "diverged": int(np.isinf(loss)),
                        "train_loss": min(loss, 9.0) * (1 + (rate == 1.0))
                        + spread * seed,
                    }
                )
    results = pd.DataFrame(rows)
    curves = results.assign(update=0, train_loss=2.0)
    names = dict.fromkeys(rule for rule, _ in LOSSES)
    programs = [
        {
            "name": rule,
            "cells": [{"optimizer": "sgd", "rule": rule}] * (3 if rule == PLAIN else 2),
        }
        for rule in names
    ]
    speeds = {PLAIN: 100.0, "half": 75.0, "worse": 150.0}  # of 3, 2 and 2 cells
    metrics = [
        {"program": rule, "updates_per_second": speeds[rule] * factor}
        for rule in names
        for factor in (0.01, 1.0, 0.5)  # the first chunk is compiled
    ]
    return Run(tmp_path, {"programs": programs}, results, curves, metrics)


def test_a_share_won_back_is_of_what_lateness_costs_plain(tmp_path):
    table = TWO.won_back(finished(tmp_path)).set_index("rule")
    assert list(table.index) == ["half", PLAIN, "worse"]  # the best first
    # means over both clusters: 0.25, 0.4 and (0.3 + 2) / 2, undelayed 0.1
    np.testing.assert_allclose(table["excess"], [0.15, 0.3, 1.05])
    np.testing.assert_allclose(table["won_back"], [0.5, 0.0, -2.5])
    assert table.loc["worse", "least_at"] == "geometric, 4"
    # seeds that are all alike leave no doubt
    np.testing.assert_allclose(table["won_back_low"], table["won_back_high"])


def test_what_all_seeds_share_cancels_in_the_intervals(tmp_path):
    table = TWO.won_back(finished(tmp_path, spread=0.02)).set_index("rule")
    np.testing.assert_allclose(table.loc["half", ["excess_low", "excess_high"]], 0.15)


def test_a_claim_s_number_is_in_the_table(tmp_path):
    found = finished(tmp_path)
    share = TWO.share("sgd", "half", about=0.5, within=0.1)
    assert share.measure(found) == pytest.approx(0.5)
    cost = TWO.cost("sgd", about=0.3, within=0.1)
    assert cost.measure(found) == pytest.approx(0.3)


def test_the_table_shows_intervals(tmp_path):
    shown = TWO.table(finished(tmp_path)).set_index("rule")
    assert shown.loc["half", "won back"] == "50% (50% to 50%)"
    assert shown.loc["half", "excess loss"] == "0.150 (0.150 to 0.150)"
    assert shown.loc["half", "more memory (gradients)"] == 1.0
    assert shown.loc["half", "time / plain's"] == 2.0
