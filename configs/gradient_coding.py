"""Does dealing workers anew help gradient coding against stragglers that stay slow?

Twenty workers in five clusters: each computes three of the data's parts, so that a
cluster is done without its two slowest. A straggler stays slow for a while, and those
of the last update are dealt evenly over the clusters (dynamic clustering, Buyukates et
al., arXiv:2011.01922). The update is the exact full gradient whoever delivers, so only
time differs: logistic regression on breast cancer data, twenty seeds.

    python -m experiments.main --config=configs/gradient_coding.py \
        --workdir=runs/gradient_coding
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Claim, Experiment, Simulation, along, figures, tasks
from experiments.results.measures import mean, ratio


def get_config() -> ConfigDict:
    """Waiting for all, static and dynamic clusters."""
    return ConfigDict(
        dict(
            workers=20,
            clusters=5,
            load=3,  # parts that each worker computes
            part_seconds=1.0,  # of one part, exponential after a shift of half of it
            slowdown=10.0,  # of a straggler
            enter=0.05,  # probability of becoming a straggler, each task
            leave=0.2,  # of being one no longer
            learning_rate=(0.3, 1.0, 3.0),
            updates=100,
            l2=0.1,  # penalty (l2 / 2) |w|^2
            seeds=20,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """Three protocols."""
    half = 0.5 * config.part_seconds
    service = dj.cluster.markov_stragglers(
        dj.cluster.shifted_exponential(half, half),
        config.slowdown,
        config.enter,
        config.leave,
    )
    cluster = dj.cluster.Cluster(config.workers, service)
    coding = dj.cluster.protocols.gradient_coding
    compared = {
        "uncoded": dj.cluster.protocols.hardsync(),
        "static": coding(config.clusters, config.load),
        "dynamic": coding(config.clusters, config.load, dynamic=True),
    }

    def seconds(scheme):
        return mean("seconds", scheme=scheme)

    def wins(found):
        """Share of the seeds in which dynamic clusters take less time."""
        table = found.results.groupby(["scheme", "seed"]).seconds.mean().unstack(0)
        return float((table.dynamic < table.static).mean())

    return Experiment(
        question="Does dealing workers anew help gradient coding?",
        task=tasks.breast_cancer(batch_size=20, l2=config.l2),
        arms=[
            (dict(scheme=name), along(Simulation(cluster, protocol), optax.sgd))
            for name, protocol in compared.items()
        ],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        updates=config.updates,
        claims=[
            Claim(
                "Seconds of dynamic over static clusters",
                ratio(seconds("dynamic"), seconds("static")),
                at_most=1.0,
            ),
            Claim("Seeds in which dynamic is faster", wins, at_least=0.9),
            Claim(
                "Seconds of static clusters over no coding",
                ratio(seconds("static"), seconds("uncoded")),
                at_most=1.0,
            ),
        ],
        figures=[
            figures.bars("seconds"),
            figures.curves("train_loss", against="seconds"),
            figures.update_times(),
        ],
    )
