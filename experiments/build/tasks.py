"""The task by its name, checked against what the config asks of it."""

import importlib

import jax
from ml_collections import ConfigDict

from experiments.tasks.task import Task


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


def _check_metrics(config: ConfigDict, task: Task) -> None:
    """Refuses a config that asks for what the task does not evaluate."""
    evaluated = jax.eval_shape(
        lambda key: task.evaluate(task.init(key)), jax.random.key(0)
    )
    recorded = {*evaluated, "gradient_norm", "seconds_to_target"}  # the runner's own
    asked = {"select_by": config.select_by}
    if {*config.figures} & {"over_delay", "over_seconds", "over_updates", "arms"}:
        asked["metric"] = config.metric
    if config.target.value:
        asked["target.metric"] = config.target.metric
    for key, metric in asked.items():
        needed = ("train_loss", "test_loss") if metric == "gap" else (metric,)
        if not {*needed} <= recorded:
            raise ValueError(
                f"config.{key} is {metric!r}, but {config.task.name} evaluates"
                f" {', '.join(sorted(evaluated))} alone: --config.{key}=train_loss."
            )
