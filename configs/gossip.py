"""Until how many workers does gossip keep up with an all-reduce?

Each worker averages its model with the model of a worker drawn at random: it reads this
model (pull), or sends its own (push). Jin et al. (arXiv:1611.04581) saw gossip converge
faster on up to about 32 nodes, and the all-reduce faster near 100. The results are the
simulated time until an MLP on scikit-learn's digits has a training loss of 0.3, and the
error after the same number of examples, on 32 and on 100 workers. The step of each is
searched for the time.

    python -m experiments.main --config=configs/gossip.py --workdir=runs/gossip
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Effect,
    Experiment,
    Range,
    Search,
    figures,
    percent,
    points,
    replicas,
)
from experiments.configs import at_least, positive
from experiments.tasks import digits_mlp
from experiments.training import methods

SMALL = {"examples": 8_000, "target": 1.5}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(1, "workers", "examples")
LIMITS |= at_least(0, "message_seconds", "target")
LIMITS |= positive("tolerance")


def get_config() -> ConfigDict:
    """The config: three methods, where the source saw gossip ahead and behind."""
    return ConfigDict(
        dict(
            workers=(32, 100),
            service_spread=0.1,  # standard deviation of a gradient's time, mean 1 s
            message_seconds=0.2,  # of a model over a link
            batch_size=1,  # example per gradient, so that 100 workers gain over 32
            examples=54_000,  # forty epochs, of all workers together
            target=0.3,  # the training loss to reach, nats
            seeds=20,
            tolerance=0.02,  # tolerance of the search, as a share of the time
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each method and number of workers."""
    compared = {
        "all-reduce": methods.allreduce_sgd(),
        "pull": methods.gossip(),
        "push": methods.gossip(push=True),
    }
    link = dj.cluster.Communication(
        message_bytes=config.message_seconds, bytes_per_second=1.0
    )
    service = dj.cluster.lognormal(1.0, config.service_spread)

    def arm(name, workers):
        cluster = dj.cluster.Cluster(workers, service, communication=link)
        training = replicas(compared[name], cluster, optax.sgd)
        return dict(method=name, workers=workers), training

    target = figures.TimeTo("train_loss", config.target)
    return Experiment(
        question="Until how many workers does gossip keep up with an all-reduce?",
        task=digits_mlp(batch_size=config.batch_size),
        arms=[arm(name, workers) for workers in config.workers for name in compared],
        grid={"learning_rate": Range(0.1, 3.0)},
        seeds=config.seeds,
        tuned_by=target,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        examples=config.examples,
        evaluations=60,
        answer=[
            Effect(metric=target, against={"method": "all-reduce"}, size=percent(10)),
            Effect(
                metric="test_error", against={"method": "all-reduce"}, size=points(1)
            ),
        ],
        figures=[
            figures.over("workers", target, color="method", fixed=False),
            figures.over("workers", "test_error", color="method", fixed=False),
            figures.curves("test_error", against="seconds", panels="workers"),
        ],
    )
