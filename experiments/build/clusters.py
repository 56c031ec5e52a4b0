"""Protocols, service laws and speeds by name, and the clusters made of them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

import delayjax as dj
from experiments import arms
from experiments import course as courses
from experiments.build.methods import METHODS, Method
from experiments.course import Budget, Course

PROTOCOLS = {
    protocol.__name__: protocol
    for protocol in (
        dj.cluster.protocols.hardsync,
        dj.cluster.protocols.n_softsync,
        dj.cluster.protocols.k_sync,
        dj.cluster.protocols.k_batch_sync,
        dj.cluster.protocols.k_async,
        dj.cluster.protocols.k_batch_async,
        dj.cluster.protocols.ssp,
        dj.cluster.protocols.psp,
        dj.cluster.protocols.round_robin,
        dj.cluster.protocols.groups,
        dj.cluster.protocols.progressive_groups,
        dj.cluster.protocols.bounded_staleness,
        dj.cluster.protocols.ringmaster,
        dj.cluster.protocols.rennala,
        dj.cluster.protocols.ringleader,
        dj.cluster.protocols.mindflayer,
        dj.cluster.protocols.gradient_coding,
        dj.cluster.protocols.event_triggered,
    )
}
SERVICES = {
    service.__name__: service
    for service in (
        dj.cluster.constant,
        dj.cluster.exponential,
        dj.cluster.shifted_exponential,
        dj.cluster.gamma,
        dj.cluster.lognormal,
        dj.cluster.pareto,
        dj.cluster.uniform,
        dj.cluster.infinite_bernoulli,
        dj.cluster.empirical,
        dj.cluster.markov_stragglers,
        dj.cluster.sleepers,
    )
}
SPEEDS = {
    "equal": lambda workers: np.ones(workers),
    "linear": lambda workers: np.arange(1.0, workers + 1),
    "sqrt": lambda workers: np.sqrt(np.arange(1.0, workers + 1)),
}
"""How many times longer than worker 0 each worker takes."""


def for_arm(config: ConfigDict, name: str) -> ConfigDict:
    """The config with what an arm changes.

    Raises:
        ValueError: if there is no such key, or its value is of another type.
    """
    own = config.copy_and_resolve_references()
    if name == arms.LOGGED:
        return own
    sections = {"batch_size": own.task, "warmup_steps": own.opt}
    known = (*(key for key in config.cluster if key != "arms"), *sections)
    for key, value in arms.parse(name).changes.items():
        if key not in known:
            raise ValueError(
                f"config.cluster.arms: {name!r} changes {key!r}, but an arm can change"
                f" {', '.join(known)} alone."
            )
        section = sections.get(key, own.cluster)
        try:
            section[key] = value
        except TypeError:
            raise ValueError(
                f"config.cluster.arms: {name!r}: {key} must be"
                f" {type(section[key]).__name__}, got {value!r}."
            ) from None
    return own


def protocol(arm: arms.Arm) -> Callable:
    """What the server of an arm does with what arrives.

    Raises:
        ValueError: if there is no such protocol, or it does not take these arguments.
    """
    known = PROTOCOLS | METHODS  # the latter to be named
    return _make(_where(arm), "protocol or method", known, arm.protocol)


def method(config: ConfigDict, name: str) -> Method | None:
    """How the workers of an arm mix models of their own; None where they have none.

    Raises:
        ValueError: if the method does not take these arguments.
    """
    if name == arms.LOGGED or (arm := arms.parse(name)).protocol.name not in METHODS:
        return None
    return _make(_where(arm), "method", METHODS, arm.protocol)


def _where(arm: arms.Arm) -> str:
    return f"config.cluster.arms: {arm.name!r}"


def cluster(config: ConfigDict) -> dj.cluster.Cluster:
    """The cluster of `config.cluster`.

    Raises:
        ValueError: naming the key whose value is wrong.
    """
    section = config.cluster
    factors = SPEEDS[section.speeds](section.workers)
    factors[section.workers - section.slow_workers :] *= section.slow_factor
    try:
        return dj.cluster.Cluster(
            section.workers,
            service(section.service),
            slowdown=factors.tolist(),
            communication=dj.cluster.Communication(
                section.latency_seconds,
                section.message_bytes,
                section.bytes_per_second or np.inf,
                section.serial,
            ),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"config.cluster: {error}") from error


def service(text: str) -> Callable:
    """A service law by its name and numbers.

    Raises:
        ValueError: if there is no such law, or it does not take these numbers.
    """
    where = f"config.cluster.service: {text!r}"
    try:
        call = arms.parse_call(text)
    except ValueError as error:
        raise ValueError(f"config.cluster.service: {error}") from None
    return _make(where, "law", SERVICES, call)


def _make(where: str, kind: str, table: Mapping[str, Any], call: arms.Call) -> Any:
    """Calls a function of a table; a law may stand among the arguments of another."""
    if call.name not in table:
        raise ValueError(
            f"{where}: there is no {kind} {call.name!r}. There are {', '.join(table)}."
        )

    def made(value):
        if isinstance(value, arms.Call):
            return _make(where, "law", SERVICES, value)
        return value

    try:
        return table[call.name](
            *map(made, call.arguments),
            **{key: made(value) for key, value in call.options.items()},
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def course(config: ConfigDict, name: str) -> Course:
    """What the cluster of an arm does under every seed.

    Args:
        config: the arm's own; see `for_arm`.
        name: the arm; "trace" is the file `config.trace`.

    Raises:
        ValueError: if the arm, its cluster or its trace cannot be made, with the key.
    """
    if name == arms.LOGGED:
        return _logged(config)
    machine, mixing = cluster(config), method(config, name)
    rule = None if mixing else protocol(arms.parse(name))

    def simulator(seed):
        mixed = np.random.SeedSequence([config.cluster_seed, seed]).generate_state(1)
        if mixing:
            return lambda steps: mixing.timetable(machine, steps, int(mixed[0]))
        return lambda updates, seconds: dj.cluster.simulate(
            machine, rule, updates, seed=int(mixed[0]), seconds=seconds
        )

    try:
        return (courses.timed if mixing else courses.simulated)(
            name,
            [simulator(seed) for seed in config.seeds],
            _budget(config),
            evaluations=config.cluster.evaluations,
            batch_size=config.task.batch_size,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"config.cluster.arms: {name!r}: {error}") from error


def _logged(config: ConfigDict) -> Course:
    try:
        trace = dj.cluster.load_trace(config.trace)
        if np.isnan(trace.seconds).any():
            raise ValueError(
                f"{config.trace} has no column time_s, and curves are drawn over time."
            )
        return courses.logged(
            arms.LOGGED,
            trace,
            _budget(config),
            seeds=len(config.seeds),
            evaluations=config.cluster.evaluations,
            batch_size=config.task.batch_size,
        )
    except OSError as error:
        raise ValueError(
            f"config.trace={config.trace} cannot be read ({error.strerror}): give a"
            " .csv or .npz file."
        ) from error
    except ValueError as error:
        raise ValueError(f"config.trace: {error}") from error


def _budget(config: ConfigDict) -> Budget:
    seconds, examples = config.cluster.seconds, config.cluster.examples
    if not seconds and not examples:
        return Budget(updates=config.steps)
    if examples and not config.task.batch_size:
        raise ValueError(
            "config.cluster.examples counts batches, and config.task.batch_size is 0:"
            " the full batch. Give config.cluster.seconds or config.steps instead."
        )
    return Budget(
        seconds=seconds or np.inf,
        gradients=examples // config.task.batch_size if examples else np.inf,
    )
