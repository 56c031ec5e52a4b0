"""Records of `configs/stability_edge.py`: steps over the limit."""

from ml_collections import ConfigDict

from experiments import statements
from experiments.results.estimates import Measure
from experiments.results.measures import ratio, tuned
from experiments.results.metrics import LargestStable

_CONFIG = statements.config_of(__file__)
level_of, limit_of, task_of = _CONFIG.level_of, _CONFIG.limit_of, _CONFIG.task_of


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: steps over the limit. The perceptron's spread is our choice."""
    task = task_of(config)
    limit, level = limit_of(task), level_of(task)

    def over_limit(which, measure, *delays):
        return {
            f"{which}, {delay} late, over the limit": ratio(
                measure(delay), lambda run, delay=delay: limit(delay)
            )
            for delay in delays
        }

    def settles(delay):
        return tuned(LargestStable("learning_rate", {"train_loss": level}), delay=delay)

    def bounded(delay):
        return tuned(LargestStable("learning_rate"), delay=delay)

    def best(delay):
        return tuned("learning_rate", delay=delay)

    if config.task == "digits_mlp":
        loss = {"Loss 8 late": tuned("train_loss", delay=8)}
        return over_limit("Best step", best, 0, 8, 16) | loss
    if config.task not in ("breast_cancer", "quadratic"):
        return {}
    stated = over_limit("Largest step that settles", settles, 0, 8, 32)
    if config.task == "breast_cancer":
        stated |= over_limit("Largest step that stays bounded", bounded, 8)
    return stated
