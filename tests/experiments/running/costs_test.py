"""What a program costs is known before it runs, and what cannot fit is refused."""

import bisect

import jax
import optax
import pytest

import delayjax as dj
from experiments import Simulation, along, on_devices, optimizer, replicas, tasks
from experiments.running import costs, execution
from experiments.running.trainer import Trainer
from experiments.training import methods
from tests.support.training_runs import DIGITS, DIGITS_PARAMETERS, program_of

pytestmark = pytest.mark.runs

CELLS = 2 * 4  # seeds; steps by delays


def late(max_delay, workers=0):
    """SGD under a delay that is traced; over devices where there are workers."""

    def make(learning_rate, delay):
        tx = optax.sgd(learning_rate)
        if workers:
            tx = dj.exchange.mean(tx)
        return dj.delayed(tx, delay, max_delay=max_delay)

    return on_devices(make, workers=workers) if workers else make


def arm(protocol, workers, service=None):
    service = service or dj.cluster.exponential(1.0)
    return along(Simulation(dj.cluster.Cluster(workers, service), protocol), optax.sgd)


def built(training, *, delays=(0, 3), task=DIGITS, **changes):
    axes = training.arguments() if hasattr(training, "arguments") else {"delay": True}
    grid = {"learning_rate": (0.01, 0.03)}
    if "delay" in axes:
        grid["delay"] = delays
    changes = dict(task=task, grid=grid, seeds=(0, 1), updates=20) | changes
    return Trainer(program_of(training, **changes))


PROTOCOLS = dj.cluster.protocols
DEEP = {
    "delay": late(64),
    "arm": arm(PROTOCOLS.k_async(1), 64, dj.cluster.lognormal(1.0, 0.1)),
    "deep arm": arm(PROTOCOLS.k_async(1), 64),
}


@pytest.mark.parametrize("kind", DEEP)
def test_the_grid_holds_no_second_history(kind):
    task = tasks.digits_mlp(batch_size=8, width=32)
    trainer = built(DEEP[kind], delays=(0, 64), task=task, updates=400, evaluations=40)
    cost = costs.costs(trainer)
    assert cost.cells == (CELLS if kind == "delay" else CELLS // 2)
    assert cost.parameters == 64 * 32 + 32 + 32 * 10 + 10
    assert (cost.state_bytes, cost.history_bytes) == costs.state_bytes(trainer)
    extra = cost.peak_bytes - cost.state_bytes
    assert extra < 0.1 * cost.history_bytes, (extra, cost)


def test_history_bytes_are_the_formula():
    _, history = costs.state_bytes(built(late(7)))
    clocks = 2 * 8  # of the gradients' and of their ages' ring
    origin = 4 + 4  # a gradient's age and its loss
    assert history == CELLS * 8 * (4 * DIGITS_PARAMETERS + origin) + clocks


def test_a_state_may_hold_a_key_of_noise():
    """As `optax.add_noise` does; two words of 4 bytes each."""
    keys = jax.random.split(jax.random.key(0), 3)
    assert costs.device_bytes(keys) == 3 * 2 * 4


def test_the_history_of_an_arm_is_as_deep_as_its_trace():
    trainer = built(arm(PROTOCOLS.round_robin(), 5))
    _, history = costs.state_bytes(trainer)
    depth = 5 - 1  # round robin: every gradient is P - 1 updates late
    assert trainer.program.job.traces[0].max_staleness == depth
    cells = 2 * 2  # seeds and steps
    # of each worker's version the parameters and the number; and two clocks
    assert history == cells * 5 * 4 * (DIGITS_PARAMETERS + 1) + 8


def test_a_history_larger_than_memory_is_refused_before_it_is_allocated():
    with pytest.raises(ValueError, match=r"GiB are histories.*Shorten the history"):
        costs.check_memory(built(late(10**7)))


@pytest.mark.parametrize("name", ["hardsync", "round_robin"])
def test_an_arm_larger_than_memory_is_refused(name, monkeypatch):
    trainer = built(arm(getattr(PROTOCOLS, name)(), 100), updates=200)
    needed = 100 * 4 * DIGITS_PARAMETERS * 4  # cells; as gradients, or as versions
    _, history = costs.state_bytes(trainer)
    assert (history > needed * 0.9) == (name == "round_robin")
    costs.check_memory(trainer)
    pages = {"SC_PHYS_PAGES": needed, "SC_PAGE_SIZE": 1}
    monkeypatch.setattr(costs.os, "sysconf", pages.get)
    with pytest.raises(ValueError, match=r"needs 0\.0 GiB on a device"):
        costs.check_memory(trainer)


@pytest.mark.parametrize("name", ["allreduce_sgd", "d_psgd"])
def test_replicas_take_one_gradient_of_each_worker(name, monkeypatch):
    """Whether they share one model, or each has a model."""
    cluster = dj.cluster.Cluster(16, dj.cluster.constant(1.0))
    trainer = built(replicas(getattr(methods, name)(), cluster, optax.sgd))
    total, _ = costs.state_bytes(trainer)
    models = 16 if name == "d_psgd" else 1
    held = execution.held(trainer.shapes()).model
    assert costs.bytes_of(held) == 4 * models * 4 * DIGITS_PARAMETERS
    gradients = 4 * 16 * 4 * DIGITS_PARAMETERS
    assert _limit(trainer, 1, monkeypatch) == total + gradients


def test_what_a_device_holds_must_fit_in_it_not_what_all_hold(monkeypatch):
    trainer = built(late(3, workers=8))
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
    assert _limit(trainer, 4, monkeypatch) == held


def _limit(trainer, devices, monkeypatch):
    """The smallest memory of a device that is enough, found by trying."""

    def enough(memory):
        pages = {"SC_PHYS_PAGES": memory * devices, "SC_PAGE_SIZE": 1}
        with monkeypatch.context() as patch:
            patch.setattr(costs.os, "sysconf", pages.get)
            try:
                costs.check_memory(trainer)
            except ValueError:
                return False
        return True

    return bisect.bisect_left(range(10**7), True, key=enough)


@pytest.mark.parametrize(("kind", "used"), [(optimizer, 1), (on_devices, 4)])
def test_a_program_is_on_one_device_if_it_simulates_its_workers(kind, used):
    def make(learning_rate, delay):
        mean = dj.exchange.mean(optax.sgd(learning_rate))
        return dj.delayed(mean, delay, max_delay=3)

    assert built(kind(make, workers=4)).devices == jax.devices()[:used]
