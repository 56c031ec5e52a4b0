"""Which step sizes of SGD are unstable, said before training."""

import functools
import itertools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

import delayjax as dj
from experiments import build, grid, progress, update
from experiments.tasks.task import Task
from experiments.tuning import Limit, Series

_EXAMPLES = 256  # of which a sharpness is measured, at least
_SHOWN = 6  # delays in a sentence


def advise(config: ConfigDict, task: Task) -> list[Limit]:
    """Logs which steps are unstable, and returns the limits; none if there are none.

    Args:
        config: checked by `build.check`.
        task: what is minimised.
    """
    try:
        found = limits(config, task)
    except (ValueError, RuntimeError) as error:  # training may go well all the same
        progress.log.warning("config.advise finds no limit: %s", error)
        return []
    for sentence in sentences(config, task, found):
        progress.log.info("%s", sentence)
    return found


def limits(config: ConfigDict, task: Task) -> list[Limit]:
    """The limits that theory gives all cells of a config, by series and delay.

    The sharpness is the task's own, at its optimum, where it knows it, and measured
    where training begins otherwise: at the first seed's parameters, on its first
    batches. A network's changes from there on; see `stability.predict_step_limit`.

    Args:
        config: checked by `build.check`.
        task: what is minimised.
    """
    curvature, sgd = _sharpness(config, task), config.opt.sgd
    found = []
    for (index, law), modulation, value in itertools.product(
        enumerate(config.delay.law),
        range(len(config.modulation.law)),
        config.delay.value,
    ):
        cell = grid.Cell(
            learning_rate=jnp.ones(()),
            delay_law=jnp.asarray(index),
            delay=jnp.asarray(value),
            modulation=jnp.asarray(modulation),
            strength=jnp.zeros(()),
        )
        weighed = config.modulation.law[modulation]
        law_of = None if weighed == "none" else build.modulation(config, cell)
        dynamics = dj.stability.Dynamics(
            _late(config, law, value),
            modulation=law_of,
            momentum=sgd.momentum,
            nesterov=sgd.nesterov,
        )
        step = dj.stability.learning_rate_limit(curvature, dynamics)
        series = Series("sgd", law, weighed, "after", "none", 0.0)
        found.append(Limit(series, value, step, curvature))
    return found


def sentences(config: ConfigDict, task: Task, found: Sequence[Limit]) -> Iterator[str]:
    """The limits in words, a sentence for each series."""
    known = "sharpness" in task.facts
    where = "at the optimum" if known else "where training begins; it changes"
    for series, own in itertools.groupby(found, lambda limit: limit.series):
        own = sorted(own, key=lambda limit: limit.delay)
        rates = config.opt[series.optimizer].learning_rate
        beyond = sum(rate >= limit.step for limit in own for rate in rates)
        places = np.linspace(0, len(own) - 1, min(_SHOWN, len(own))).round().astype(int)
        name = ", ".join(
            (series.optimizer, series.delay_law)
            + ((series.modulation,) if series.modulation != "none" else ())
        )
        shown = [f"{own[i].step:.3g} at {own[i].delay:g}" for i in places]
        yield (
            f"{name}: with a sharpness of {own[0].sharpness:.3g} ({where}) steps are"
            f" unstable from {', '.join(shown)} updates of delay on; {beyond} of the"
            f" {len(own) * len(rates)} cells lie beyond"
        )


def _late(config: ConfigDict, law: str, value: float) -> np.ndarray:
    chances = build.staleness_pmf(config, law, value)
    overlapped = config.mesh.workers > 1 and config.exchange == "overlapped_mean"
    return np.concatenate([[0.0], chances]) if overlapped else chances


def _sharpness(config: ConfigDict, task: Task) -> float:
    if "sharpness" in task.facts:
        return float(task.facts["sharpness"])
    seed = config.seeds[0]
    params = task.init(jax.random.fold_in(jax.random.key(config.params_seed), seed))
    count = -(-_EXAMPLES // task.examples) if task.examples else 1
    batches = task.batches(update.data_seed(config, seed), 0, count)

    def loss(params, batches):
        of_one = functools.partial(task.loss, params)
        return jax.lax.map(of_one, batches).mean()

    return dj.stability.sharpness(loss, params, batches)
