"""Times several step functions in turn, so that a noisy machine is noisy for all."""

import datetime
import functools
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp


class Contender:
    """A donated, compiled step and the state it carries."""

    def __init__(
        self,
        step: Callable[..., Any],
        state: Any,
        *inputs: Any,
        steps: int = 1,
        options: dict[str, Any] | None = None,
    ):
        """`step(state, *inputs) -> state`; it is jitted here and its state donated.

        With `steps` above 1 the compiled program is a loop of so many steps: what a
        call costs, which on an accelerator may be more than the step, is shared by all.
        `options` are the compiler's.
        """

        def loop(state, *inputs):
            def body(_, state):
                # else a compiler makes but once what is the same in all steps
                return step(*jax.lax.optimization_barrier((state, *inputs)))

            return jax.lax.fori_loop(0, steps, body, state)

        def lowered(function):
            jitted = jax.jit(function, donate_argnums=0, compiler_options=options)
            return jitted.lower(state, *inputs)

        self._inputs = inputs
        self._one = lowered(step)
        self.program = lowered(loop).compile() if steps > 1 else self.compiled
        self.state = state
        self._steps = steps

    @functools.cached_property
    def compiled(self) -> Any:
        """One step alone, compiled, for its memory and cost analysis."""
        return self._one.compile()

    def start(self) -> None:
        """Begins the program, whose result is then its state."""
        self.state = self.program(self.state, *self._inputs)

    def seconds(self) -> float:
        """The time of one step, to the last byte of its result."""
        started = time.perf_counter()
        self.start()
        jax.block_until_ready(self.state)
        return (time.perf_counter() - started) / self._steps


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


def copy(size: int, steps: int) -> Contender:
    """An array of float32 numbers read and one written, again and again."""
    # a compiler may take two negations for none
    return Contender(lambda x: 1.0 - x, jnp.ones(size), steps=steps)


def steps_a_program() -> int:
    """How many short steps to compile into one program: 1 on a CPU, 50 elsewhere."""
    return 1 if jax.default_backend() == "cpu" else 50


def machine() -> dict[str, Any]:
    """Date, versions and devices."""
    return {
        "date": str(datetime.date.today()),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "devices": len(jax.devices()),
        "device": jax.devices()[0].device_kind,
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }


def heading(facts: Mapping[str, Any] | None = None) -> str:
    """`machine()`, of this process or of another, for the top of a table."""
    return (
        "{date}, jax {jax}, Python {python}, {devices} x {device} ({processor}, {cores}"
        " cores)"
    ).format_map(machine() if facts is None else facts)
