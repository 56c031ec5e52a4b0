"""Each process draws the batches of its workers: the same as one process for all."""

import dataclasses
import os
import socket
import subprocess
import sys
import types

import chex
import jax
import numpy as np
import optax
import pytest

import delayjax as dj
from experiments import optimizer, tasks
from experiments.running import execution
from experiments.training import Request
from tests.support.commands import ROOT
from tests.support.training_runs import DIGITS

DIVIDED = [
    [[0, 1, 2, 3]],
    [[0, 1], [2, 3]],
    [[0, 3], [1, 2]],  # a mesh may have another order than the processes
    [[0], [1], [2], [3]],
]
REQUEST = Request((0, 1), 20, None, None, None)


def job_of(task=DIGITS, workers=4):
    training = optimizer(lambda: dj.exchange.mean(optax.sgd(0.1)), workers=workers)
    return training.job(task, REQUEST)


@pytest.mark.parametrize("processes", DIVIDED)
def test_the_parts_of_all_processes_are_the_batch_of_one(processes):
    job = job_of()
    parts = [job.given(5, 8, np.array(workers)) for workers in processes]
    order = np.argsort(np.concatenate(processes))
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves, 1)[:, order], *parts)
    chex.assert_trees_all_equal(joined, job.given(5, 8))


def test_workers_have_the_batch_of_one_worker_in_its_order():
    one = job_of(workers=1).given(2, 4)  # [steps, seeds, examples, ...]
    four = job_of().given(2, 4)  # [steps, workers, seeds, examples, ...]

    def joined(leaf):
        leaf = np.moveaxis(leaf, 1, 2)
        return leaf.reshape(*leaf.shape[:2], -1, *leaf.shape[4:])

    chex.assert_trees_all_equal(jax.tree.map(joined, four), one)


def test_a_process_asks_for_the_examples_of_its_own_workers_alone():
    asked = []

    def batches(*arguments):
        asked.append(arguments[3:])
        return DIGITS.batches(*arguments)

    job = job_of(dataclasses.replace(DIGITS, batches=batches))
    job.given(0, 1, np.array([0, 3]))
    for (part,) in asked:  # a batch is 8 examples, two for each worker
        np.testing.assert_array_equal(part, [0, 1, 6, 7])
    assert len(asked) == len(REQUEST.seeds)


def test_of_a_task_that_draws_whole_batches_each_process_keeps_its_part():
    whole_only = dataclasses.replace(
        DIGITS,
        batches=lambda seed, start, stop: DIGITS.batches(seed, start, stop),
        examples=None,
    )
    workers = np.array([1, 2])
    chex.assert_trees_all_equal(
        job_of(whole_only).given(0, 3, workers), job_of().given(0, 3, workers)
    )


def test_examples_that_the_workers_do_not_divide_are_refused():
    job = job_of(tasks.digits_mlp(batch_size=6))
    with pytest.raises(ValueError, match=r"must divide the examples .*, got 4 .*6"):
        job.given(0, 1, np.array([0]))


def test_own_workers_are_those_of_own_devices():
    def fed(*parts):
        return types.SimpleNamespace(
            addressable_devices_indices_map=lambda shape: {
                device: (slice(None), *part) for device, part in enumerate(parts)
            }
        )

    eight = fed([slice(4, 6)], [slice(0, 2)])
    workers = execution.workers_here(eight, {"workers": 8})
    np.testing.assert_array_equal(workers, [0, 1, 4, 5])
    axes = {"groups": 2, "members": 4}  # worker 4 g + m
    both = fed([slice(0, 2), slice(2, 3)], [slice(1, 2), slice(0, 1)])
    np.testing.assert_array_equal(execution.workers_here(both, axes), [2, 4, 6])
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    three = execution.workers_here(one, {"workers": 3})
    np.testing.assert_array_equal(three, [0, 1, 2])
    np.testing.assert_array_equal(execution.workers_here(one, axes), np.arange(8))
    np.testing.assert_array_equal(execution.workers_here(one, {}), [0])


IN_A_PROCESS = """
import sys

import jax

jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import optax

import delayjax as dj
from experiments import optimizer, tasks
from experiments.running import execution
from experiments.training import Request

workers = 8
training = optimizer(lambda: dj.exchange.mean(optax.sgd(0.1)), workers=workers)
request = Request((0, 1), 20, None, None, None)
job = training.job(tasks.digits_mlp(batch_size=16, width=4), request)
whole = job.given(3, 6)
for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
    mesh = Mesh(np.array(jax.devices())[order], ("workers",))
    fed = NamedSharding(mesh, P(None, "workers"))
    own = execution.workers_here(fed, {"workers": workers})
    assert len(own) == workers // 2, own
    given = job.given(3, 6, own)

    def check(leaf, expected):
        placed = execution.placed(leaf, fed, {"workers": workers})
        assert placed.shape == expected.shape
        assert len(placed.addressable_shards) == 2
        for shard in placed.addressable_shards:
            np.testing.assert_array_equal(shard.data, expected[shard.index])

    jax.tree.map(check, given, whole)
print("alike")
"""


@pytest.mark.long
def test_two_processes_place_the_batch_of_one_from_their_own_parts():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", IN_A_PROCESS, address, str(i)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        )
        for i in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert all(output.endswith("alike\n") for output in outputs)
