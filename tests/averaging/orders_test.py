import jax
import jax.numpy as jnp
import numpy as np
import optax
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


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: averaging.first_come(["soon"]),
            ValueError,
            r"`seconds` must have shape \[T, P\], with numbers",
        ),
        (
            lambda: averaging.first_come([1.0]),
            ValueError,
            r"`seconds` must have shape \[T, P\]",
        ),
        (
            lambda: averaging.first_come([[np.nan]]),
            ValueError,
            "`seconds` must be numbers, got nan",
        ),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("order", "error", "message"),
    [
        (
            averaging.first_come([[1.0, 2.0]]),
            ValueError,
            "one column for each of the 4",
        ),
        (lambda step: 0.5, TypeError, r"`order\(step\)` must be an integer"),
        (lambda step: jnp.arange(4), ValueError, r"`order\(step\)` must be a scalar"),
    ],
)
def test_a_turn_that_says_something_else_is_refused(order, error, message):
    tx = averaging.easgd(optax.sgd(0.1), order=order)
    with pytest.raises(error, match=message):
        jax.vmap(lambda x: tx.update(x, tx.init(x), x)[0], axis_name="workers")(
            jnp.ones(4)
        )
