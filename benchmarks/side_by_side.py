"""Times several step functions in turn, so that a noisy machine is noisy for all."""

import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


class Contender:
    """A donated, compiled step and the state it carries."""

    def __init__(self, step: Callable[..., Any], state: Any, *inputs: Any):
        """`step(state, *inputs) -> state`; it is jitted here and its state donated."""
        self._inputs = inputs
        self._step = jax.jit(step, donate_argnums=0).lower(state, *inputs).compile()
        self._state = state

    @property
    def compiled(self) -> Any:
        """The compiled step, for its memory and cost analysis."""
        return self._step

    def seconds(self) -> float:
        """The time of one step, to the last byte of its result."""
        started = time.perf_counter()
        self._state = jax.block_until_ready(self._step(self._state, *self._inputs))
        return time.perf_counter() - started


class Run:
    """A function without arguments, timed to the last byte of its result."""

    def __init__(self, function: Callable[[], Any]):
        """`function` may compile at its first call, which warms it up."""
        self._function = function

    def seconds(self) -> float:
        """The time of one call."""
        started = time.perf_counter()
        jax.block_until_ready(self._function())
        return time.perf_counter() - started


def medians(
    contenders: Mapping[str, Contender | Run], *, rounds: int, warmup: int = 3
) -> dict[str, float]:
    """Median seconds of each contender, over rounds in which all take turns."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(warmup + rounds):
        for name, contender in contenders.items():
            seconds = contender.seconds()
            if turn >= warmup:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def heading() -> str:
    """Date, versions and machine, for the top of a table."""
    device = jax.devices()[0]
    return (
        f"{datetime.date.today()}, jax {jax.__version__}, Python"
        f" {platform.python_version()}, {len(jax.devices())} x {device.device_kind}"
        f" ({platform.machine()}, {os.cpu_count()} cores)"
    )
