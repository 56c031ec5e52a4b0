"""The numbers of a program as rows: means, clocks, staleness, what was dropped."""

import dataclasses
import json

import numpy as np
import optax
import pandas as pd
import pytest

from experiments import Experiment, tasks
from experiments.results import tables
from experiments.running import rows as of_programs
from experiments.running.cells import Chunk, Counters
from experiments.running.programs import programs
from experiments.running.rows import Rows

EXPERIMENT = Experiment(
    question="Why?",
    task=tasks.quadratic(),
    training=optax.sgd,
    grid={"learning_rate": (0.01, 0.03)},
    seeds=(5, 6),
    updates=10,
)


def program(experiment=EXPERIMENT, **rule):
    """Its only one, with another rule's numbers."""
    (made,) = programs(experiment)
    return dataclasses.replace(made, job=made.job._replace(**rule))


PROGRAM = program()
SIMULATED = program(
    updates=2,
    seconds=lambda step: np.array([[0.0, 1.5, 2.0][step]] * 2),
    examples=lambda step: np.array([[0, 4, 12], [0, 0, 8]])[:, step],
    dropped=lambda step: np.array([[0.0, 0.5, 0.25], [0.0, 0.0, 0.0]])[:, step],
)
"""Two updates, at 1.5 s and 2 s; the second seed's first has no gradient."""


def counters(diverged=((-1, -1), (-1, -1))):
    """Of two seeds and two cells; every update was fresh."""
    counts = np.zeros((2, 2, 3), np.int32)
    counts[..., 0] = 10
    none = np.zeros((2, 2), np.int32)
    return Counters(np.asarray(diverged, np.int32), counts, none + 10, none, none)


def chunk(losses):
    losses = np.asarray(losses, np.float32)
    return Chunk(losses, np.zeros_like(losses))


def test_a_loss_that_is_not_finite_is_null_in_json():
    losses = [[[1.0, np.nan], [3.0, np.inf]]]
    counted = counters([[-1, 0], [-1, 0]])
    row = Rows(PROGRAM).of_chunk(1, chunk(losses), counted, 1.0, None)
    assert row["losses"] == [[1.0, None], [3.0, None]]
    assert (row["not_finite"], row["train_loss"]) == (2, 2.0)  # the live ones' median
    assert json.loads(json.dumps(row, allow_nan=False)) == row


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_mean_loss_of_a_chunk_is_the_plain_mean(seed):
    losses = np.random.default_rng(seed).normal(size=(50, 2, 2)).astype(np.float32)
    row = Rows(PROGRAM).of_chunk(50, chunk(losses), counters(), 1.0, None)
    assert row["losses"] == np.mean(losses, axis=0).tolist()  # bit for bit


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_staleness_summary_is_numpys(seed):
    draws = np.random.default_rng(seed).poisson(5.0, 1000)
    summary = of_programs.staleness_summary(np.bincount(draws))
    np.testing.assert_allclose(summary["staleness_mean"], draws.mean())
    expected = np.percentile(draws, 99, method="inverted_cdf")
    assert summary["staleness_p99"] == expected
    assert summary["staleness_max"] == draws.max()


def test_without_gradients_the_summary_is_zero():
    assert set(of_programs.staleness_summary(np.zeros(3, int)).values()) == {0}


def test_results_are_tidy():
    initial = {"train_loss": np.full((2, 2), 2.0)}
    final = {
        "train_loss": np.array([[1.0, 3.0], [np.nan, 1.0]]),
        "test_accuracy": np.full((2, 2), 0.5),
    }
    counted = counters([[-1, -1], [7, -1]])
    rows = Rows(PROGRAM).results(counted, initial, final)
    result = pd.DataFrame(rows)
    assert result["seed"].tolist() == [5, 5, 6, 6]
    assert result["learning_rate"].tolist() == [0.01, 0.03] * 2
    # a bounded run that ends above the initial loss has not diverged
    assert result["diverged"].tolist() == [0, 0, 1, 0]
    assert result["ended_higher"].tolist() == [0, 1, 1, 0]
    assert result["diverged_update"].tolist() == [-1, -1, 7, -1]
    # seven updates were done before the loss was not finite
    assert result["updates"].tolist() == [10, 10, 7, 10]
    assert result["test_accuracy"].eq(0.5).all() and "seconds" not in result


@pytest.mark.parametrize("end", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_at_the_end_alone_has_diverged(end):
    """The batches' losses, by which a cell is frozen, may all have been finite."""
    initial, final = ({"train_loss": np.full((2, 2), value)} for value in (2.0, end))
    result = pd.DataFrame(Rows(PROGRAM).results(counters(), initial, final))
    assert result["diverged"].all() and result["ended_higher"].all()
    assert (result["diverged_update"] == -1).all()


def test_rows_have_the_clock_and_the_share_of_dropped_gradients():
    metrics = {"train_loss": np.ones((2, 2)), "gradient_norm": np.full((2, 2), 3.0)}
    counted = counters([[-1, -1], [1, -1]])
    rows = Rows(SIMULATED).results(counted, metrics, metrics)
    first, _, stopped, second = rows
    assert (first["updates"], first["seconds"], first["dropped"]) == (2, 2.0, 0.25)
    assert (second["examples"], second["dropped"]) == (8, 0.0)
    # one update was done before the loss was not finite
    assert (stopped["updates"], stopped["seconds"], stopped["examples"]) == (1, 1.5, 0)
    assert first["gradient_norm"] == 3.0


def test_without_a_cluster_dropped_is_the_share_that_was_counted():
    counted = counters()._replace(dropped=np.array([[0, 1], [2, 3]]))
    metrics = {"train_loss": np.ones((2, 2))}
    rows = Rows(PROGRAM).results(counted, metrics, metrics)
    assert [row["dropped"] for row in rows] == [0.0, 0.1, 0.2, 0.3]


def test_what_the_server_and_a_rule_refuse_is_one_share_in_rows_and_metrics():
    refused = np.array([[0, 1], [2, 10]])
    counted = counters()._replace(dropped=refused, dropped_in_row=refused)
    metrics = {"train_loss": np.ones((2, 2))}
    rows = Rows(SIMULATED).results(counted, metrics, metrics)
    # the server refused a quarter of the first seed's; of the rest a rule, a tenth
    shares = [0.25, 0.25 + 0.75 * 0.1, 0.2, 1.0]
    assert [row["dropped"] for row in rows] == pytest.approx(shares)
    assert [row["dropped_in_row"] for row in rows] == [0, 1, 2, 10]
    ones = chunk(np.ones((2, 2, 2)))
    row = Rows(SIMULATED).of_chunk(2, ones, counted, 1.0, None)
    assert row["dropped"] == pytest.approx(np.mean(shares))
    assert row["dropped_in_row"] == 10


def test_rows_hold_the_clock_and_the_evaluation_and_curves_are_read_from_them():
    losses = [[[1.0, 1.0], [np.nan] * 2], [[3.0, 3.0], [5.0, 5.0]]]
    evaluation = {"train_loss": np.array([[0.5, np.nan], [2.0, 3.0]])}
    rows = Rows(SIMULATED)
    row = rows.of_chunk(2, chunk(losses), counters(), 1.0, evaluation)
    # the second seed's first update had no gradient, and so no loss
    assert row["losses"] == [[2.0, 2.0], [5.0, 5.0]]
    assert row["seconds"] == [2.0, 2.0] and row["examples"] == [12, 8]
    assert row["evaluation"] == {"train_loss": [[0.5, None], [2.0, 3.0]]}
    asked = SIMULATED.seeds, SIMULATED.settings()
    assert tables.curve_rows([row], *asked, lambda update: update != 2) == []
    rows = tables.curve_rows([row], *asked, SIMULATED.job.evaluates)
    result = pd.DataFrame(rows)
    assert result["seed"].tolist() == [5, 5, 6, 6]
    assert result["learning_rate"].tolist() == [0.01, 0.03] * 2
    assert result["examples"].tolist() == [12, 12, 8, 8]
    np.testing.assert_array_equal(result["train_loss"], [0.5, np.nan, 2.0, 3.0])
