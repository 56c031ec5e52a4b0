"""What happens to a gradient on its way into the parameters."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict
from scipy import stats

import delayjax as dj
from experiments.course import Course
from experiments.grid import Cell, Program

OPTIMIZERS = ("sgd", "adam", "adamw", "lion", "muon", "lars")


def max_delay(config: ConfigDict) -> int:
    """The static depth of the history, in updates.

    Raises:
        ValueError: if a law without an upper end comes without `delay.max_delay`.
    """
    if config.delay.max_delay is not None:
        if config.delay.max_delay < 0:
            raise ValueError(
                "config.delay.max_delay must be non-negative, got"
                f" {config.delay.max_delay}."
            )
        return config.delay.max_delay
    unbounded = [law for law in config.delay.law if law in ("geometric", "poisson")]
    if unbounded:
        raise ValueError(
            f"config.delay.max_delay must be given for the law {unbounded[0]!r}, which"
            " has no largest delay: --config.delay.max_delay=64, say. What exceeds it"
            " is clipped and counted."
        )
    widest = 2 if "uniform" in config.delay.law else 1
    return math.ceil(widest * max(config.delay.value))


def delay(config: ConfigDict, cell: Cell, replicate: jax.Array) -> Callable:
    """The cell's delay as a function of the step."""
    key = jax.random.fold_in(jax.random.key(config.delay_seed), replicate)
    value = cell.delay.astype(jnp.int32)
    # workers draw apart
    axis = "workers" if config.mesh.workers > 1 else None

    def law(name):
        match name:
            case "constant":
                return lambda step: value
            case "uniform":
                return dj.delays.uniform(key, 0, 2 * value, axis_name=axis)
            case "geometric":
                return dj.delays.geometric(key, cell.delay, axis_name=axis)
            case "poisson":
                return dj.delays.poisson(key, cell.delay, axis_name=axis)

    laws = [law(name) for name in config.delay.law]
    return lambda step: jnp.stack([law(step) for law in laws])[cell.delay_law]


def staleness_pmf(config: ConfigDict, law: str, value: float) -> np.ndarray:
    """How probable a staleness of 0, 1, ... is under a delay, float64 [max_delay + 1].

    What exceeds the history is as late as it can be.
    """
    ages = np.arange(max_delay(config) + 1)
    match law:
        case "constant":
            chances = ages == value
        case "uniform":
            high = 2 * int(value)
            chances = (ages <= high) / (high + 1)
        case "geometric":
            chances = stats.geom.pmf(ages + 1, 1 / (1 + value))
        case "poisson":
            chances = stats.poisson.pmf(ages, value)
        case _:
            raise ValueError(f"unknown delay law {law!r}.")
    chances = np.asarray(chances, np.float64)
    chances[-1] += max(0.0, 1 - chances.sum())
    return chances


def modulation(
    config: ConfigDict, cell: Cell, course: Course | None = None
) -> Callable:
    """The cell's law: staleness -> factor. Some need to know the arm's `course`."""

    def law(name):
        section = config.modulation
        match name:
            case "none":
                return lambda staleness: jnp.ones(())
            case "inverse":
                return dj.modulation.inverse
            case "polynomial":
                return dj.modulation.polynomial(section.power)
            case "hinge":
                return dj.modulation.hinge(section.slope, section.knee)
            case "exponential":
                return dj.modulation.exponential(section.rate)
            case "capped":
                return dj.modulation.capped(course.workers)
            case "by_mean":
                return lambda staleness: dj.modulation.inverse(course.mean_staleness)

    laws = [law(name) for name in config.modulation.law]
    return lambda tau: jnp.stack([law(tau) for law in laws])[cell.modulation]


def learning_rate(config: ConfigDict, cell: Cell) -> Callable:
    """The cell's learning rate as a function of the step."""
    warmup = max(config.opt.warmup_steps, 1)

    def rate(step):
        shape = jnp.minimum(1.0, (step + 1) / warmup)
        if config.opt.decay == "cosine":
            shape *= 0.5 * (1.0 + jnp.cos(jnp.pi * step / config.steps))
        return cell.learning_rate * shape

    return rate


def optimizer(
    config: ConfigDict, program: Program, cell: Cell
) -> optax.GradientTransformation:
    """The optimizer without any delay."""
    options = config.opt[program.optimizer]
    rate = learning_rate(config, cell)
    match program.optimizer:
        case "sgd":
            return optax.sgd(rate, options.momentum or None, options.nesterov)
        case "adam":
            return optax.adam(rate, options.b1, options.b2, options.eps)
        case "adamw":
            return optax.adamw(
                rate,
                options.b1,
                options.b2,
                options.eps,
                weight_decay=options.weight_decay,
            )
        case "lion":
            return optax.lion(
                rate, options.b1, options.b2, weight_decay=options.weight_decay
            )
        case "muon":
            return optax.contrib.muon(
                rate,
                beta=options.beta,
                nesterov=options.nesterov,
                consistent_rms=0.2,  # updates as large as Adam's, whatever the shape
            )
        case "lars":
            return optax.lars(
                rate,
                options.weight_decay,
                trust_coefficient=options.trust_coefficient,
                momentum=options.momentum,
            )


def transformation(
    config: ConfigDict, program: Program, cell: Cell, replicate: jax.Array
) -> optax.GradientTransformationExtraArgs:
    """The whole chain: delayed( compensate, law?, mean( optimizer, law? )).

    One worker has no mean to take; `drop_stale` then stands around all of it.
    """
    before, after = _around(config, program, cell)
    several = config.mesh.workers > 1
    behind = [optimizer(config, program, cell), *after]
    inner = optax.chain(*(behind if several else (*before, *behind)))
    if config.delay.drop_above is not None:
        inner = dj.drop_stale(inner, config.delay.drop_above)
    if several:
        inner = optax.chain(*before, exchange(config, inner))
    dtype = config.delay.history_dtype
    return dj.delayed(
        inner,
        delay(config, cell, replicate),
        max_delay=max_delay(config),
        keep_params=program.compensation != "none",
        warmup=config.delay.warmup,
        history=dj.ring.cast(dtype) if dtype else None,
    )


def exchange(
    config: ConfigDict, inner: optax.GradientTransformation
) -> optax.GradientTransformationExtraArgs:
    """What takes the mean over the workers' axis."""
    match config.exchange:
        case "mean":
            return dj.exchange.mean(inner)
        case "overlapped_mean":
            return dj.exchange.overlapped_mean(inner)
    raise ValueError(f"unknown exchange {config.exchange!r}.")


def replay(
    config: ConfigDict, program: Program, cell: Cell, course: Course, grad_fn: Callable
) -> dj.Replay:
    """Training along an arm: compensate, law?, the mean, optimizer, law?

    What stands before the optimizer acts on each gradient with its own staleness, what
    stands after it on the step with their mean.
    """
    before, after = _around(config, program, cell, course)
    tables = None
    if course.name.startswith("ringleader("):
        tables = dj.cluster.protocols.ringleader().aggregation(course.workers)
    return dj.replay(
        course.traces,
        grad_fn,
        optax.chain(optimizer(config, program, cell), *after),
        each=optax.chain(*before) if before else None,
        aggregation=tables,
        read_spread=config.cluster.read_spread,
    )


def _around(
    config: ConfigDict, program: Program, cell: Cell, course: Course | None = None
) -> tuple[list, list]:
    """What stands before the optimizer, and what after it."""
    before, after = [], []
    match program.compensation:
        case "dc" | "dc_adaptive":
            before.append(
                dj.compensate_delay(
                    cell.strength,
                    adaptive=program.compensation == "dc_adaptive",
                    decay=config.compensation.decay,
                )
            )
        case "gap_aware":
            before.append(dj.gap_aware(learning_rate(config, cell)))
    if set(config.modulation.law) != {"none"}:
        law = dj.scale_by_staleness(modulation(config, cell, course))
        (before if program.placement == "before" else after).append(law)
    return before, after
