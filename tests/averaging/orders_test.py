import jax
import jax.numpy as jnp
import numpy as np

from delayjax import averaging


def test_who_comes_first_is_served_first_equals_by_rank_and_the_table_starts_again():
    order = averaging.first_come([[3.0, 1.0, 1.0, np.inf], [0.0, 2.0, 1.0, 3.0]])
    over = jax.vmap(lambda _, step: order(step), in_axes=(0, None), axis_name="workers")
    places = [over(jnp.zeros(4), step).tolist() for step in range(3)]
    assert places == [[2, 0, 1, -1], [0, 2, 1, 3], [2, 0, 1, -1]]
