import importlib
import itertools

import jax
import numpy as np
import pytest

from configs import default
from experiments import build, grid


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


def test_an_arm_is_static_and_its_cells_have_no_delay():
    config = default.get_config()
    config.opt.name = ("sgd", "adam")
    config.delay.law, config.delay.value = ("constant", "uniform"), (0, 1, 2)
    config.modulation.law = ("none", "inverse")
    config.cluster.arms = ("hardsync()", "k_sync(2)  workers=4")
    programs = grid.programs(config)
    assert [(program.arm, program.optimizer) for program in programs] == [
        *(("hardsync()", "sgd"), ("hardsync()", "adam")),
        *(("k_sync(2) workers=4", "sgd"), ("k_sync(2) workers=4", "adam")),
    ]
    assert programs[-1].name == "adam-none-after-k_sync_2_workers=4"
    cells = grid.cells(config, programs[0])
    assert len(cells.delay) == len(config.opt.sgd.learning_rate) * 2
    assert not cells.delay.any() and not cells.delay_law.any()


@pytest.mark.parametrize(
    "name",
    [
        *("char_lm", "compensation", "constant_delay", "modulation", "stability_edge"),
        *("softsync", "softsync:tradeoff", "k_async", "k_async:shifted"),
        *("k_async:pareto", "grouping", "barriers", "time_optimal"),
        *("time_optimal:linear", "real_trace", "workers", "workers:spectrum"),
        "noise_floor",
    ],
)
def test_a_shipped_config_is_sound_and_every_axis_of_it_has_one_length(name):
    name, *argument = name.split(":")
    module = importlib.import_module(f"configs.{name}")
    loaded = module.get_config(*argument)
    build.check(loaded)
    build.task(loaded)
    for program in grid.programs(loaded):
        lengths = {leaf.shape for leaf in jax.tree.leaves(grid.cells(loaded, program))}
        assert len(lengths) == 1
