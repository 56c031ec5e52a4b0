import itertools

import jax
import numpy as np
import pytest

from configs import default
from experiments import grid


def test_cells_are_the_product_of_the_tuples():
    config = default.get_config()
    config.opt.adam.learning_rate = (0.1, 0.2)
    config.delay.value = (0, 4)
    config.modulation.law = ("none", "inverse")
    cells = grid.cells(config, grid.Program("adam", "none", "after"))
    expected = list(itertools.product((0.1, 0.2), (0,), (0, 4), (0, 1), (0.0,)))
    got = list(zip(*map(np.asarray, cells), strict=True))
    np.testing.assert_allclose(got, expected, rtol=1e-7)


def test_strengths_are_an_axis_only_where_they_are_used():
    config = default.get_config()
    config.compensation.strength = (0.0, 0.1, 1.0)
    without = grid.cells(config, grid.Program("adam", "none", "after"))
    with_dc = grid.cells(config, grid.Program("adam", "dc", "after"))
    assert len(with_dc.delay) == 3 * len(without.delay)


def test_what_is_static_makes_a_program_of_its_own():
    config = default.get_config()
    config.opt.name = ("sgd", "adam")
    config.modulation.placement = ("after", "before")
    names = [program.name for program in grid.programs(config)]
    assert names == [
        "sgd-none-after",
        "sgd-none-before",
        "adam-none-after",
        "adam-none-before",
    ]


@pytest.mark.parametrize("config", ["char_lm", "compensation", "constant_delay"])
def test_every_axis_of_a_shipped_config_has_one_length(config):
    module = __import__(f"configs.{config}", fromlist=["get_config"])
    loaded = module.get_config()
    for program in grid.programs(loaded):
        lengths = {leaf.shape for leaf in jax.tree.leaves(grid.cells(loaded, program))}
        assert len(lengths) == 1
