"""The costs of a program, computed before it runs."""

import math
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.host import processes
from experiments.running import execution
from experiments.running.trainer import Trainer
from experiments.training.gradients import histories


class Costs(NamedTuple):
    """The costs of a program, computed before it runs."""

    cells: int
    parameters: int  # of one cell
    history_bytes: int  # of all cells
    state_bytes: int  # of all cells; the size of a checkpoint
    flops: float  # of one update of all cells
    peak_bytes: int  # of one chunk, estimated by the compiler
    compile_seconds: float
    update_seconds: float | None  # of all cells, measured; None: too large to run
    run_seconds: float | None  # of all updates and evaluations, without compiling

    def __str__(self):
        mib = 2**20
        if self.update_seconds is None or self.run_seconds is None:
            timed = "not measured: the device has less memory than the peak"
        else:
            timed = (
                f"{self.update_seconds * 1e3:,.3g} ms an update,"
                f" {self.run_seconds:,.3g} s in all with evaluations"
            )
        return (
            f"{self.cells} cells, compiled in {self.compile_seconds:.1f} s\n"
            f"  parameters of a cell   {self.parameters:,}\n"
            f"  history, all cells     {self.history_bytes / mib:,.1f} MiB\n"
            f"  checkpoint             {self.state_bytes / mib:,.1f} MiB\n"
            f"  FLOPs of an update     {self.flops:.3g}\n"
            f"  estimated peak memory  {self.peak_bytes / mib:,.1f} MiB\n"
            f"  time                   {timed}"
        )


def state_bytes(trainer: Trainer) -> tuple[int, int]:
    """Bytes of a program's state, and of the histories in it."""
    state = execution.held(trainer.shapes())
    return bytes_of(state), bytes_of(histories(state))


def device_bytes(shapes: Any) -> int:
    """The bytes that shapes with shardings take in the memory of one device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(shapes)
        if x.sharding.memory_kind in (None, "device")
    )


def check_memory(trainer: Trainer) -> None:
    """Checks that a program fits, before anything is allocated.

    Raises:
        ValueError: if it does not fit, with the sizes and the remedies.
    """
    program = trainer.program
    state = execution.held(trainer.shapes())
    total, history = device_bytes(state), device_bytes(histories(state))
    memory = _memory(state)
    # the gradients of an update along a trace are computed at the same time
    at_once = max((trace.max_gradients for trace in program.rule.traces), default=0)
    needed = total + at_once * device_bytes(state.model)
    if needed > memory:
        raise ValueError(
            f"The state of {program.name} needs {needed / 2**30:.1f} GiB on a device,"
            f" of which {history / 2**30:.1f} GiB are histories; the device has"
            f" {memory / 2**30:.1f} GiB. Shorten the history (`max_delay`, or a"
            " protocol that refuses old gradients), keep it in bfloat16"
            " (`history=dj.ring.cast(jnp.bfloat16)`), or train fewer cells at once"
            " (--shard)."
        )


def _memory(state: Any) -> int:
    """Bytes of memory of one device of a state."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    # the CPU devices that take part share the memory of the host
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return host // len(state.step.sharding.addressable_devices)


def costs(trainer: Trainer) -> Costs:
    """Compiles a program, reads its costs, and times a few of its updates."""
    state = trainer.shapes()
    chunk, count = trainer.feed.shapes()
    started = time.perf_counter()
    compiled = trainer.run_chunk.lower(state, chunk, count).compile()
    seconds = time.perf_counter() - started
    memory = compiled.memory_analysis()
    # the number of updates of a chunk is an argument: so the loop counts once
    flops = compiled.cost_analysis()["flops"]
    state = execution.held(state)
    seeds, cells = state.diverged_step.shape
    total, history = state_bytes(trainer)
    peak = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    )
    fits = peak <= _memory(state)
    update_seconds, run_seconds = _timed(trainer, compiled) if fits else (None, None)
    return Costs(
        cells=seeds * cells,
        parameters=sum(
            math.prod(x.shape[2:]) for x in jax.tree.leaves(state.model.params)
        ),
        history_bytes=history,
        state_bytes=total,
        flops=flops,
        peak_bytes=peak,
        compile_seconds=seconds,
        update_seconds=update_seconds,
        run_seconds=run_seconds,
    )


_ENOUGH = 1.0  # the least seconds to time


def _timed(trainer: Trainer, compiled: Callable[..., Any]) -> tuple[float, float]:
    """Seconds of an update, and of a whole run that never waits for data.

    Args:
        trainer: the trainer of the program.
        compiled: its chunk: (state, data of the updates, count) -> (state, numbers).
    """
    rule = trainer.program.rule
    most = min(trainer.feed.chunk, rule.updates)
    given = trainer.feed.given(0, most)

    def updated(state, count):
        started = time.perf_counter()
        state, _ = jax.block_until_ready(compiled(state, given, np.int32(count)))
        return state, time.perf_counter() - started

    state, _ = updated(trainer.init(), 1)  # a first call takes longer
    count = 1
    state, seconds = updated(state, count)
    # all processes make the same updates
    while 2 * count <= most and not any(processes.any_of(seconds > _ENOUGH)):
        count *= 2
        state, seconds = updated(state, count)
    jax.block_until_ready(trainer.evaluate(state))  # compiles it
    started = time.perf_counter()
    jax.block_until_ready(trainer.evaluate(state))
    of_evaluation = time.perf_counter() - started
    update = seconds / count
    evaluations = rule.updates / rule.evaluate_every
    return update, rule.updates * update + evaluations * of_evaluation


def bytes_of(tree: Any) -> int:
    """Bytes of the leaves of a tree, arrays or shapes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))
