"""Strings become functions here, and nowhere else."""

import importlib
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import results
from experiments.grid import Cell, Program
from experiments.tasks.task import Task

OPTIMIZERS = ("sgd", "adam", "adamw", "lion", "muon")
DELAY_LAWS = ("constant", "uniform", "geometric", "poisson")
HISTORY_DTYPES = ("", "bfloat16", "float16", "float32")
LAWS = ("none", "inverse", "polynomial", "hinge", "exponential")
COMPENSATIONS = ("none", "dc", "dc_adaptive", "gap_aware")


def check(config: ConfigDict) -> None:
    """Refuses a config that cannot be trained, before any work.

    Raises:
        ValueError: naming the key, its value and the remedy.
    """
    for path, value in jax.tree.leaves_with_path(config.to_dict()):
        if isinstance(value, float) and not math.isfinite(value):
            key = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ValueError(f"config.{key} must be finite, got {value}.")
    _choices("opt.name", config.opt.name, OPTIMIZERS)
    _choices("opt.decay", (config.opt.decay,), ("constant", "cosine"))
    _choices("delay.law", config.delay.law, DELAY_LAWS)
    _choices("delay.warmup", (config.delay.warmup,), ("fresh", "skip", "zeros"))
    _choices("delay.history_dtype", (config.delay.history_dtype,), HISTORY_DTYPES)
    _choices("modulation.law", config.modulation.law, LAWS)
    _choices("modulation.placement", config.modulation.placement, ("after", "before"))
    _choices("compensation.name", config.compensation.name, COMPENSATIONS)
    _choices("metric", (config.metric,), tuple(results.METRICS))
    _choices("select_by", (config.select_by,), ("train_loss", "test_loss"))
    if config.figures:
        _choices("figures", config.figures, results.FIGURES)
    for name in config.opt.name:
        _numbers(f"opt.{name}.learning_rate", config.opt[name].learning_rate, low=0.0)
    _numbers("delay.value", config.delay.value, low=0.0)
    _numbers("compensation.strength", config.compensation.strength, low=0.0)
    _numbers("seeds", config.seeds, low=0)
    if not all(isinstance(seed, int) for seed in config.seeds):
        raise ValueError(f"config.seeds must hold integers, got {config.seeds}.")
    if "constant" in config.delay.law and any(
        value != int(value) for value in config.delay.value
    ):
        raise ValueError(
            f"config.delay.value must be whole for constant delays, got"
            f" {config.delay.value}."
        )
    if config.delay.drop_above is not None and config.delay.drop_above < 0:
        raise ValueError(
            f"config.delay.drop_above must be non-negative, got"
            f" {config.delay.drop_above}: None refuses nothing."
        )
    for key in ("steps", "chunk", "checkpoint_every", "checkpoints_kept"):
        if config[key] < 1:
            raise ValueError(f"config.{key} must be at least 1, got {config[key]}.")
    for key in ("steps", "checkpoint_every"):
        if config[key] % config.chunk:
            raise ValueError(
                f"config.{key} must be a multiple of config.chunk, got {config[key]}"
                f" and {config.chunk}: the chunk is compiled once."
            )
    start_stop = config.profile
    if len(start_stop) != 2 or not 0 <= start_stop[0] <= start_stop[1]:
        raise ValueError(f"config.profile must be (start, stop), got {start_stop}.")
    max_delay(config)


def task(config: ConfigDict) -> Task:
    """The task named by `config.task.name`.

    Raises:
        ValueError: if there is no such task.
    """
    name = config.task.name
    match name.split(":", 1):
        case ["digits_mlp"]:
            module, make = "experiments.tasks.digits", "make_mlp"
        case ["digits_cnn"]:
            module, make = "experiments.tasks.digits", "make_cnn"
        case ["breast_cancer" | "char_lm" | "quadratic"]:
            module, make = f"experiments.tasks.{name}", "make"
        case ["tokens", _]:
            module, make = "experiments.tasks.tokens", "make"
        case ["tfds", _]:
            module, make = "experiments.tasks.images", "make"
        case [module, make] if module and make:
            pass
        case _:
            raise ValueError(
                f"config.task.name is no task: {name!r}. There are digits_mlp,"
                " digits_cnn, breast_cancer, char_lm, quadratic, tokens:/path/*.bin,"
                " tfds:NAME, and your own as package.module:make."
            )
    try:
        factory = getattr(importlib.import_module(module), make)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"config.task.name: {name!r} cannot be imported ({error}). Run from the"
            " folder that holds the module, or install what it needs."
        ) from error
    made = factory(config.task)
    if not isinstance(made, Task):
        raise ValueError(
            f"config.task.name: {name!r} must return an experiments.tasks.task.Task,"
            f" got {type(made).__name__}."
        )
    _check_metrics(config, made)
    return made


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

    def law(name):
        match name:
            case "constant":
                return dj.delays.constant(value)
            case "uniform":
                return dj.delays.uniform(key, 0, 2 * value)
            case "geometric":
                return dj.delays.geometric(key, cell.delay)
            case "poisson":
                return dj.delays.poisson(key, cell.delay)

    laws = [law(name) for name in config.delay.law]
    return lambda step: jnp.stack([law(step) for law in laws])[cell.delay_law]


def modulation(config: ConfigDict, cell: Cell) -> Callable:
    """The cell's law: staleness -> factor."""

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


def transformation(
    config: ConfigDict, program: Program, cell: Cell, replicate: jax.Array
) -> optax.GradientTransformationExtraArgs:
    """The whole chain: delayed( compensate, law?, optimizer, law? )."""
    links = []
    match program.compensation:
        case "dc" | "dc_adaptive":
            links.append(
                dj.compensate_delay(
                    cell.strength,
                    adaptive=program.compensation == "dc_adaptive",
                    decay=config.compensation.decay,
                )
            )
        case "gap_aware":
            links.append(dj.gap_aware(learning_rate(config, cell)))
    links.append(optimizer(config, program, cell))
    if set(config.modulation.law) != {"none"}:
        law = dj.scale_by_staleness(modulation(config, cell))
        links.insert(len(links) - (program.placement == "before"), law)
    inner = optax.chain(*links)
    if config.delay.drop_above is not None:
        inner = dj.drop_stale(inner, config.delay.drop_above)
    dtype = config.delay.history_dtype
    return dj.delayed(
        inner,
        delay(config, cell, replicate),
        max_delay=max_delay(config),
        keep_params=program.compensation != "none",
        warmup=config.delay.warmup,
        history=dj.ring.cast(dtype) if dtype else None,
    )


def _check_metrics(config: ConfigDict, task: Task) -> None:
    """Refuses a config that asks for what the task does not evaluate."""
    recorded = jax.eval_shape(
        lambda key: task.evaluate(task.init(key)), jax.random.key(0)
    )
    asked = {"select_by": config.select_by}
    if "over_delay" in config.figures:
        asked["metric"] = config.metric
    for key, metric in asked.items():
        needed = ("train_loss", "test_loss") if metric == "gap" else (metric,)
        if not {*needed} <= {*recorded}:
            raise ValueError(
                f"config.{key} is {metric!r}, but {config.task.name} evaluates"
                f" {', '.join(sorted(recorded))} alone: --config.{key}=train_loss."
            )


def _choices(key: str, values: tuple, allowed: tuple) -> None:
    if not values:
        raise ValueError(f"config.{key} must not be empty.")
    for value in values:
        if value not in allowed:
            raise ValueError(
                f"config.{key} must be among {', '.join(map(repr, allowed))}, got"
                f" {value!r}."
            )


def _numbers(key: str, values: tuple, *, low: float) -> None:
    if not isinstance(values, tuple) or not values:
        raise ValueError(
            f"config.{key} must be a tuple with at least one number, got {values!r}:"
            f" --config.{key}='(0.1,)'."
        )
    for value in values:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and value >= low):
            raise ValueError(
                f"config.{key} must hold finite numbers of at least {low}, got"
                f" {value!r}."
            )
    if len(set(values)) != len(values):
        raise ValueError(f"config.{key} must not repeat a value, got {values}.")
