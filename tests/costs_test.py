"""What a program costs is known before it runs, and what cannot fit is refused."""

import bisect

import jax
import pytest

from configs import default
from experiments import build, costs, execution, grid, train

PARAMETERS = 64 * 4 + 4 + 4 * 10 + 10  # of an MLP with 4 hidden units


def built(**changes):
    """The one program of the shipped default, shrunk."""
    config = default.get_config()
    config.task.width = 4
    config.task.batch_size = 8
    config.opt.name = ("sgd",)
    config.opt.sgd.learning_rate = (0.01, 0.03)
    config.delay.value = (0, 3)
    config.seeds = (0, 1)
    config.steps = 20
    config.chunk = config.checkpoint_every = 10
    config.update_from_flattened_dict(changes)
    (program,) = grid.programs(config)
    course = None
    if program.arm:
        config = build.for_arm(config, program.arm)
        course = build.course(config, program.arm)
    task = build.task(config)
    return program, train.trainer(config, program, task, course)


@pytest.mark.parametrize(
    "changes",
    [
        {"delay.value": (0, 64)},
        {"cluster.arms": ("k_async(1) workers=64 service=lognormal(1.0, 0.1)",)},
        {"cluster.arms": ("k_async(1) workers=64 service=exponential(1.0)",)},
    ],
    ids=["delay", "arm", "deep arm"],
)
def test_the_grid_holds_no_second_history(changes):
    _, trainer = built(**{"task.width": 32, "steps": 400} | changes)
    cost = costs.costs(trainer)
    extra = cost.peak_bytes - cost.state_bytes
    assert extra < 0.1 * cost.history_bytes, (extra, cost)


def test_history_bytes_are_the_formula():
    _, trainer = built(**{"delay.value": (0, 7)})
    _, history = costs.state_bytes(trainer)
    clocks = 2 * 8  # of the gradients' and of their ages' ring
    origin = 4 + 4  # a gradient's age and its loss
    assert history == 2 * 4 * 8 * (4 * PARAMETERS + origin) + clocks


def test_the_history_of_an_arm_is_as_deep_as_its_trace():
    _, trainer = built(**{"cluster.arms": ("round_robin() workers=5",)})
    _, history = costs.state_bytes(trainer)
    depth = 5 - 1  # round robin: every gradient is P - 1 updates late
    assert trainer.max_delay == depth
    assert history == 2 * 2 * (depth + 1) * 4 * PARAMETERS + 8


def test_a_history_larger_than_memory_is_refused_before_it_is_allocated():
    program, trainer = built(**{"delay.max_delay": 10**7})
    with pytest.raises(ValueError, match=r"GiB are the gradients' history.*max_delay"):
        costs.check_memory(program, trainer)


@pytest.mark.parametrize("arm", ["hardsync() workers=100", "round_robin() workers=100"])
def test_an_arm_larger_than_memory_is_refused(arm, monkeypatch):
    program, trainer = built(**{"cluster.arms": (arm,), "steps": 200})
    needed = 100 * 4 * PARAMETERS * 4  # cells; as gradients, or as versions
    _, history = costs.state_bytes(trainer)
    assert (history > needed * 0.9) == arm.startswith("round_robin")
    costs.check_memory(program, trainer)
    pages = {"SC_PHYS_PAGES": needed, "SC_PAGE_SIZE": 1}
    monkeypatch.setattr(costs.os, "sysconf", pages.get)
    with pytest.raises(ValueError, match=r"100 are taken|99 updates old.*workers"):
        costs.check_memory(program, trainer)


def test_what_a_device_holds_must_fit_in_it_not_what_all_hold(monkeypatch):
    program, trainer = built(**{"mesh.workers": 8, "execution": "run"})
    state = execution.held(trainer.init())
    first, *others = state.step.sharding.device_set
    held = sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves(state)
        for shard in leaf.addressable_shards
        if shard.device == first
    )
    total, history = costs.state_bytes(trainer)
    assert len(others) == 3
    assert held < total - 0.7 * history  # two of eight workers' histories
    assert _limit(program, trainer, 4, monkeypatch) == held


def _limit(program, trainer, devices, monkeypatch):
    """The smallest memory of a device that is enough, found by trying."""

    def enough(memory):
        pages = {"SC_PHYS_PAGES": memory * devices, "SC_PAGE_SIZE": 1}
        with monkeypatch.context() as patch:
            patch.setattr(costs.os, "sysconf", pages.get)
            try:
                costs.check_memory(program, trainer)
            except ValueError:
                return False
        return True

    return bisect.bisect_left(range(10**7), True, key=enough)
