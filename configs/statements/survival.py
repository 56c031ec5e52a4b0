"""Claims of Yu, Chen and Poor about many workers, and records."""

import functools

import jax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import statements
from experiments.results.claims import Published
from experiments.results.estimates import Measure
from experiments.results.measures import ratio, tuned
from experiments.results.metrics import TimeTo
from experiments.tasks import digits_mlp

regular = statements.config_of(__file__).regular


def published(config: ConfigDict) -> list[Published]:
    """The claims of the paper, on regular workers and a network."""
    stated = dict(
        source="Yu, Chen, Poor (2024), arXiv:2406.11159, abstract",
        setting="synthetic models and MNIST, losses that are not convex included",
        bound_is_ours=True,
        demonstration=True,
        tried="One step size for all numbers of workers: each at its best step is not"
        " run. An outside reader refused it as a headline.",
    )
    return [
        Published(
            text="More workers do not always help: 16 regular ones are slower than 8",
            said="more activated workers do not always help",
            measure=ratio(until(config, "regular", 16), until(config, "regular", 8)),
            at_least=1.0,
            **stated,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: speedups of each law, and the fastest number of workers."""
    limit = limit_of(config)

    def over_limit(run):
        times = {n: until(config, "regular", n)(run) for n in config.workers}
        return min(times, key=times.get) / limit

    measures = {"The fastest number over the limit, regular": over_limit}
    for law, few, many in (
        ("regular", 1, 4),
        ("regular", 1, 8),
        ("memoryless", 8, 64),
        ("heavy tails", 1, 8),
        ("heavy tails", 8, 16),
        ("recorded", 1, 8),
    ):
        measures[f"Seconds of {few} over {many} workers, {law}"] = ratio(
            until(config, law, few), until(config, law, many)
        )
    return measures


def until(config: ConfigDict, law: str, workers: int) -> Measure:
    """Simulated seconds until the target; inf if a seed never gets there."""
    return tuned(TimeTo("train_loss", config.target), law=law, workers=workers)


def limit_of(config: ConfigDict) -> float:
    """The number of regular workers that diverges, from the curvature at the start."""
    step = config.learning_rate * sharpness()
    return dj.stability.optimal_workers(step, regular(config)).limit


@functools.cache
def sharpness() -> float:
    """The curvature of the whole loss at the start."""
    whole = digits_mlp(batch_size=0)
    (batch,) = jax.tree.map(lambda x: x[0], [whole.batches(0, 0, 1)])
    params = whole.init(jax.random.fold_in(jax.random.key(0), 0))
    return float(dj.stability.sharpness(whole.loss, params, batch))
