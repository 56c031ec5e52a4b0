"""Peers train to our numbers, and those that are absent are named."""

import numpy as np
import pytest

from benchmarks.peers import clusters, histories
from benchmarks.peers.common import checkout, difference
from benchmarks.tables import NotMeasuredError


def test_a_tuple_of_gradients_gives_our_bits_and_an_absent_peer_is_named():
    ours, fifo, absent = histories.rows(64, (3,), 2, None)
    assert (ours["history"], fifo["history"]) == ("ours", "tuple FIFO, Optax")
    assert fifo["difference"] == 0.0 and fifo["/ ours"] > 0
    # the state before and after: 4 or 3 gradients, parameters; a tuple is copied
    assert ours["memory / gradient"] < fifo["memory / gradient"]
    assert absent["ms"] == "not measured: no --learned_delayed_optim=DIR"


def test_a_checkout_without_the_file_is_named(tmp_path):
    with pytest.raises(NotMeasuredError, match=r"--x=.* has no src/y\.py"):
        checkout(str(tmp_path), "x", "src/y.py")
    with pytest.raises(NotMeasuredError, match="no --ringmaster_lmo=DIR"):
        next(clusters.rows(1, None))


def test_the_difference_is_over_the_largest_number_of_ours():
    theirs, ours = {"a": np.array([1.0, 2.5])}, {"a": np.array([1.0, 2.0])}
    assert difference(theirs, ours) == 0.25
