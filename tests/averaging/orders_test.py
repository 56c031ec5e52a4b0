"""The order in which workers visit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from delayjax import averaging


def places(order, workers, steps=1):
    """The place of each worker at each step, [T, P]."""
    over = jax.vmap(lambda _, step: order(step), in_axes=(0, None), axis_name="workers")
    return [over(jnp.zeros(workers), step).tolist() for step in range(steps)]


def test_ranks_are_places():
    assert places(averaging.by_rank(), 4, 2) == [[0, 1, 2, 3]] * 2


def test_who_comes_first_is_served_first_equals_by_rank_and_the_table_starts_again():
    order = averaging.first_come([[3.0, 1.0, 1.0, np.inf], [0.0, 2.0, 1.0, 3.0]])
    assert places(order, 4, 3) == [[2, 0, 1, -1], [0, 2, 1, 3], [2, 0, 1, -1]]


def test_a_time_that_is_no_number_is_named():
    with pytest.raises(ValueError, match="`seconds` must be numbers, got nan"):
        averaging.first_come([[np.nan, 1.0]])
