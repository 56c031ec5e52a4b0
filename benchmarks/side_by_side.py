"""Times several step functions in turns, so that noise of the machine affects all."""

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
    """A compiled step that donates its state, and this state."""

    def __init__(
        self,
        step: Callable[..., Any],
        state: Any,
        *inputs: Any,
        steps: int = 1,
        options: dict[str, Any] | None = None,
    ):
        """Compiles `step(state, *inputs) -> state`, with its state donated.

        With `steps` above 1 the compiled program is a loop of `steps` steps, which
        share the cost of a call; on an accelerator a call may cost more than a step.
        `options` are options of the compiler.
        """

        def loop(state, *inputs):
            def body(_, state):
                # else a compiler computes only once what is equal in all steps
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
        """One compiled step, for its memory and cost analysis."""
        return self._one.compile()

    def start(self) -> None:
        """Starts the program; its result becomes the state."""
        self.state = self.program(self.state, *self._inputs)

    def seconds(self) -> float:
        """The time of one step, until its result is complete."""
        started = time.perf_counter()
        self.start()
        jax.block_until_ready(self.state)
        return (time.perf_counter() - started) / self._steps


class Run:
    """A function without arguments, timed until its result is complete."""

    def __init__(self, function: Callable[[], Any]):
        """Takes a function, which may compile at its first call."""
        self._function = function

    def seconds(self) -> float:
        """The time of one call."""
        started = time.perf_counter()
        jax.block_until_ready(self._function())
        return time.perf_counter() - started


def medians(
    contenders: Mapping[str, Contender | Run], *, rounds: int, warmup: int = 3
) -> dict[str, float]:
    """{name: median seconds of a contender}, over rounds in which all take turns."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(warmup + rounds):
        for name, contender in contenders.items():
            seconds = contender.seconds()
            if turn >= warmup:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def copy(size: int, steps: int) -> Contender:
    """A contender that reads an array of float32 numbers and writes one."""
    # a compiler may leave out two negations in a row
    return Contender(lambda x: 1.0 - x, jnp.ones(size), steps=steps)


def steps_a_program() -> int:
    """The number of short steps in a compiled program: 1 on a CPU, 50 elsewhere."""
    return 1 if jax.default_backend() == "cpu" else 50


def machine() -> dict[str, Any]:
    """The date, the versions and the devices, as facts for `heading`."""
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
    """The line over a table, from `machine()` of this process or another."""
    return (
        "{date}, jax {jax}, Python {python}, {devices} x {device} ({processor}, {cores}"
        " cores)"
    ).format_map(machine() if facts is None else facts)
