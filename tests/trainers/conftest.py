import jax
import pytest


@pytest.fixture(autouse=True)
def rank_promotion():
    # the trainers' own code adds arrays of different ranks
    with jax.numpy_rank_promotion("allow"):
        yield
