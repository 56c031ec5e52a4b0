"""What can be found wrong with a config before any work."""

import math

import jax
from ml_collections import ConfigDict

from experiments import arms, results
from experiments.build.clusters import SPEEDS, for_arm, method
from experiments.build.training import OPTIMIZERS, max_delay
from experiments.execution import devices

DELAY_LAWS = ("constant", "uniform", "geometric", "poisson")
HISTORY_DTYPES = ("", "bfloat16", "float16", "float32")
LAWS = ("none", "inverse", "polynomial", "hinge", "exponential")
ARM_LAWS = ("capped", "by_mean")
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
    names = arms.names(config)
    laws = (*LAWS, *ARM_LAWS) if names else LAWS
    _choices("modulation.law", config.modulation.law, laws)
    _choices("modulation.placement", config.modulation.placement, ("after", "before"))
    _choices("compensation.name", config.compensation.name, COMPENSATIONS)
    others = ("gradient_norm", "seconds_to_target")  # of arms alone
    metrics = [name for name in results.METRICS if names or name not in others]
    _choices("metric", (config.metric,), metrics)
    tuned_by = ("train_loss", "test_loss", *(others if names else ()))
    _choices("select_by", (config.select_by,), tuned_by)
    if config.figures:
        figures = (*results.FIGURES, *(results.ARM_FIGURES if names else ()))
        _choices("figures", config.figures, figures)
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
        if config[key] % config.chunk and not names:  # arms have chunks of their own
            raise ValueError(
                f"config.{key} must be a multiple of config.chunk, got {config[key]}"
                f" and {config.chunk}: the chunk is compiled once."
            )
    start_stop = config.profile
    if len(start_stop) != 2 or not 0 <= start_stop[0] <= start_stop[1]:
        raise ValueError(f"config.profile must be (start, stop), got {start_stop}.")
    max_delay(config)
    _check_workers(config, names)
    if config.advise:
        _check_advice(config, names)
    if names:
        _check_arms(config, names)


def _check_workers(config: ConfigDict, names: list[str]) -> None:
    _choices("execution", (config.execution,), ("simulate", "run"))
    _choices("exchange", (config.exchange,), ("mean", "overlapped_mean"))
    workers, examples = config.mesh.workers, config.task.batch_size
    if workers < 1:
        raise ValueError(f"config.mesh.workers must be at least 1, got {workers}.")
    if examples % workers:
        raise ValueError(
            f"config.mesh.workers={workers} must divide config.task.batch_size, got"
            f" {examples}: every worker has equally many examples."
        )
    if config.execution == "run":
        devices(config)
    if names and (workers > 1 or config.execution == "run"):
        raise ValueError(
            "config.cluster.arms simulate workers of their own: leave"
            " config.mesh.workers=1 and config.execution='simulate', got"
            f" {workers} and {config.execution!r}."
        )


def _check_advice(config: ConfigDict, names: list[str]) -> None:
    """Refuses what theory has no limit of, by name."""
    known = {
        "opt.name": (config.opt.name, ("sgd",)),
        "compensation.name": (config.compensation.name, ("none",)),
        "modulation.placement": (config.modulation.placement, ("after",)),
        "delay.drop_above": ((config.delay.drop_above,), (None,)),
        "cluster.arms": (names, ()),
    }
    if config.mesh.workers > 1:  # who draw apart: the mean of theirs is no one law
        known["delay.law"] = config.delay.law, ("constant",)
    for key, (chosen, allowed) in known.items():
        if others := [name for name in chosen if name not in allowed]:
            raise ValueError(
                f"config.advise knows no limit for config.{key} {others[0]!r}: leave"
                " config.advise=False, or that out."
            )


def _check_arms(config: ConfigDict, names: list[str]) -> None:
    if config.trace and config.cluster.arms:
        raise ValueError(
            "config.cluster.arms must be () where config.trace is given, got"
            f" {config.cluster.arms}: a logged trace is the only arm."
        )
    if len(set(map(arms.slug, names))) != len(names):
        raise ValueError(f"config.cluster.arms must not repeat an arm, got {names}.")
    for key in ("drop_above", "history_dtype"):
        if config.delay[key] not in (None, ""):
            raise ValueError(
                f"config.delay.{key} does nothing under config.cluster.arms, got"
                f" {config.delay[key]!r}: leave it out."
            )
    for name in names:
        _check_cluster(for_arm(config, name).cluster)
        _check_method(config, name)
    if "over_option" in config.figures:
        _check_options(config, names)
    _choices("target.metric", (config.target.metric,), results.EVALUATED)
    if config.select_by == "seconds_to_target" and not config.target.value:
        raise ValueError(
            "config.select_by is 'seconds_to_target', but config.target.value is 0, no"
            " target: --config.target.value=0.1."
        )


def _check_method(config: ConfigDict, name: str) -> None:
    """Who has a model of its own has no gradient that is late."""
    if method(config, name) is None:
        return
    for key in ("modulation.law", "compensation.name"):
        section, _, option = key.partition(".")
        if config[section][option] != ("none",):
            raise ValueError(
                f"config.{key} must be ('none',) where {name!r} is among"
                " config.cluster.arms, whose workers use gradients as they take them,"
                f" got {config[section][option]}."
            )
    if config.cluster.read_spread:
        raise ValueError(
            f"config.cluster.read_spread does nothing for {name!r}, got"
            f" {config.cluster.read_spread}: take ea_wild() or hogwild_sgd()."
        )


def _check_options(config: ConfigDict, names: list[str]) -> None:
    for key in filter(None, (config.over.option, config.over.panels)):
        for name in names:
            there = {
                option: value
                for option, value in arms.options(name, config.to_dict()).items()
                if value > 0
            }
            if key not in there:
                raise ValueError(
                    f"config.over: {name!r} has no positive number {key!r}, only"
                    f" {', '.join(there)}: name it in each of config.cluster.arms, as"
                    f" {key}=8, or leave over_option out of config.figures."
                )


def _check_cluster(section: ConfigDict) -> None:
    for key in ("workers", "evaluations"):
        if section[key] < 1:
            raise ValueError(
                f"config.cluster.{key} must be at least 1, got {section[key]}."
            )
    for key in ("seconds", "examples", "bytes_per_second"):
        if section[key] < 0:
            raise ValueError(
                f"config.cluster.{key} must be non-negative, got {section[key]}."
            )
    if not 0 <= section.slow_workers <= section.workers:
        raise ValueError(
            "config.cluster.slow_workers must lie in 0 .. config.cluster.workers ="
            f" {section.workers}, got {section.slow_workers}."
        )
    _choices("cluster.speeds", (section.speeds,), tuple(SPEEDS))
    if not 0.0 <= section.read_spread <= 1.0:
        raise ValueError(
            f"config.cluster.read_spread must lie in [0, 1], got {section.read_spread}."
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
