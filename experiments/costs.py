"""What a program costs, known before it runs."""

import math
import os
import time
from typing import Any, NamedTuple

import jax
import numpy as np

import delayjax as dj
from experiments import execution
from experiments.grid import Program
from experiments.train import Trainer


class Costs(NamedTuple):
    """What a program costs, known before it runs."""

    cells: int
    parameters: int  # of one cell
    history_bytes: int  # of all cells
    state_bytes: int  # of all cells; what a checkpoint holds
    flops: float  # of one update of all cells
    peak_bytes: int  # of one chunk, estimated by the compiler
    compile_seconds: float


def state_bytes(trainer: Trainer) -> tuple[int, int]:
    """Bytes of a program's state, and of the histories in it."""
    state = execution.held(trainer.shapes())
    return _bytes(state), _bytes(rings(state))


def rings(tree: Any) -> list[dj.ring.Ring]:
    """The histories in a state."""

    def is_ring(node):
        return isinstance(node, dj.ring.Ring)

    return [node for node in jax.tree.leaves(tree, is_leaf=is_ring) if is_ring(node)]


def device_bytes(shapes: Any) -> int:
    """Bytes in the memory of one device, of shapes with shardings."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * np.dtype(x.dtype).itemsize
        for x in jax.tree.leaves(shapes)
        if x.sharding.memory_kind in (None, "device")
    )


def check_memory(program: Program, trainer: Trainer) -> None:
    """Refuses a program that cannot fit, before anything is allocated.

    Raises:
        ValueError: with the sizes and the remedies.
    """
    state = execution.held(trainer.shapes())
    total, history = device_bytes(state), device_bytes(rings(state))
    stats = jax.local_devices()[0].memory_stats() or {}
    memory = stats.get("bytes_limit")
    if memory is None:  # CPUs: those that take part have the host's together
        host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        memory = host // len(state.step.sharding.addressable_devices)
    taken = 0
    remedy = (
        "Lower config.delay.max_delay, halve the history with"
        " --config.delay.history_dtype=bfloat16"
    )
    if trainer.course is not None:
        # the gradients of an update are taken at once
        taken = trainer.course.width * device_bytes(state.params)
        remedy = (
            f"Its gradients are up to {trainer.max_delay} updates old, and"
            f" {trainer.course.width} are taken at once: take fewer workers, refuse the"
            " oldest with ringmaster(...)"
        )
    if total + taken > memory:
        raise ValueError(
            f"The state of program {program.name} needs on a device"
            f" {(total + taken) / 2**30:.1f} GiB, of which {history / 2**30:.1f} GiB"
            f" are the gradients' history; the device has {memory / 2**30:.1f} GiB."
            f" {remedy}, or train fewer cells at once."
        )


def costs(trainer: Trainer) -> Costs:
    """Compiles a program and reads its costs off, without running it."""
    state = trainer.shapes()
    chunk = trainer.given_shapes()
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), chunk)
    started = time.perf_counter()
    compiled = trainer.run_chunk.lower(state, chunk).compile()
    seconds = time.perf_counter() - started
    memory = compiled.memory_analysis()
    flops = trainer.step.lower(state, one).compile().cost_analysis()["flops"]
    state = execution.held(state)
    seeds, cells = state.diverged_step.shape
    total, history = state_bytes(trainer)
    return Costs(
        cells=seeds * cells,
        parameters=sum(math.prod(x.shape[2:]) for x in jax.tree.leaves(state.params)),
        history_bytes=history,
        state_bytes=total,
        flops=flops,
        peak_bytes=memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes,
        compile_seconds=seconds,
    )


def _bytes(tree: Any) -> int:
    return sum(
        math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree)
    )
