"""The costs of a program, computed before it runs."""

import math
import os
from typing import Any, NamedTuple

import jax

from experiments.running import execution
from experiments.running.trainer import Trainer
from experiments.training.gradients import histories
from experiments.training.jobs import begun


class Costs(NamedTuple):
    """The costs of a program, computed before it runs."""

    cells: int
    parameters: int  # of one cell
    history_bytes: int  # of all cells
    state_bytes: int  # of all cells; the size of a checkpoint
    peak_bytes: int  # of one chunk, estimated by the compiler

    def __str__(self):
        mib = 2**20
        return (
            f"{self.cells} cells\n"
            f"  parameters of a cell   {self.parameters:,}\n"
            f"  history, all cells     {self.history_bytes / mib:,.1f} MiB\n"
            f"  checkpoint             {self.state_bytes / mib:,.1f} MiB\n"
            f"  estimated peak memory  {self.peak_bytes / mib:,.1f} MiB"
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
    at_once = max((trace.max_gradients for trace in program.job.traces), default=0)
    one = jax.eval_shape(lambda: begun(program.task, jax.random.key(0)))
    needed = total + at_once * state.diverged_step.size * bytes_of(one)
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
    """Compiles a program, and reads its costs."""
    state = trainer.shapes()
    compiled = trainer.run_chunk.lower(state, *trainer.feed.shapes()).compile()
    memory = compiled.memory_analysis()
    state = execution.held(state)
    seeds, cells = state.diverged_step.shape
    total, history = state_bytes(trainer)
    peak = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    )
    return Costs(
        cells=seeds * cells,
        parameters=sum(
            math.prod(x.shape[2:]) for x in jax.tree.leaves(state.model.params)
        ),
        history_bytes=history,
        state_bytes=total,
        peak_bytes=peak,
    )


def bytes_of(tree: Any) -> int:
    """Bytes of the leaves of a tree, arrays or shapes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))
