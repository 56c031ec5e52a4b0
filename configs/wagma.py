"""How much time does it save to wait for no slow worker, and what does it cost?

The imbalance is from Li et al. (WAGMA-SGD, arXiv:2005.00124): at each step two of P
workers take 0.32 s longer than the 0.4 s of the others. A model takes 0.08 s over a
link, and a message 0.01 s; all sums are by recursive halving. WAGMA-SGD averages in
groups of sqrt(P) without waiting, and over all workers every 11 steps. It is compared
with its six baselines on 16, 64 and 256 workers with a batch of 2 each. The result is
the simulated time until an MLP on scikit-learn's digits has a training loss of 0.4,
each at its best step.

    python -m experiments.main --config=configs/wagma.py --workdir=runs/wagma
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
    tasks,
)
from experiments.configs import at_least, positive
from experiments.training import methods

SMALL = {"seconds": 10.0, "target": 2.0}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(1, "workers", "period")
LIMITS |= at_least(0, "step_seconds", "sleep_seconds", "message_seconds", "target")
LIMITS |= at_least(0, "latency_seconds") | positive("seconds", "tolerance")


def get_config() -> ConfigDict:
    """The config: seven methods on three numbers of workers."""
    return ConfigDict(
        dict(
            workers=(16, 64, 256),
            step_seconds=0.4,  # of a gradient
            sleep_seconds=0.32,  # longer, for two workers at each step
            message_seconds=0.08,  # of a model over a link
            latency_seconds=0.01,  # of a message
            period=11,  # steps between two global averages of WAGMA-SGD
            seconds=80.0,  # simulated
            target=0.4,  # the training loss to reach, nats
            batch_size=2,  # examples per gradient
            seeds=12,
            tolerance=0.02,  # tolerance of the search, as a share of the time
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each method and number of workers."""
    compared = {
        "WAGMA-SGD": methods.wagma(period=config.period),
        "Allreduce-SGD": methods.allreduce_sgd(),
        "eager-SGD": methods.eager_sgd(),
        "local SGD": methods.local_sgd(period=10),
        "D-PSGD": methods.d_psgd(),
        "AD-PSGD": methods.ad_psgd(),
        "SGP": methods.sgp(peers=2),
    }

    link = dj.cluster.Communication(
        config.latency_seconds, config.message_seconds, bytes_per_second=1.0
    )

    def arm(name, workers):
        asleep = dj.cluster.sleepers(config.step_seconds, config.sleep_seconds, workers)
        cluster = dj.cluster.Cluster(workers, asleep, communication=link)
        training = replicas(compared[name], cluster, optax.sgd)
        return dict(method=name, workers=workers), training

    target = figures.TimeTo("train_loss", config.target)
    both = {
        "against": {"method": "Allreduce-SGD"},
        "where": {"method": ("WAGMA-SGD", "Allreduce-SGD")},
    }
    return Experiment(
        question="What does WAGMA-SGD save when workers sleep, and at which cost?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[arm(name, workers) for workers in config.workers for name in compared],
        grid={"learning_rate": Range(0.1, 3.0)},
        seeds=config.seeds,
        tuned_by=target,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        seconds=config.seconds,
        evaluations=60,
        answer=[
            Effect(metric="updates", size=percent(10), name="WAGMA's updates", **both),
            Effect(metric="test_error", size=points(1), name="WAGMA's error", **both),
            Effect(metric=target, against={"method": "WAGMA-SGD"}, size=percent(10)),
        ],
        figures=[
            figures.over("workers", target, color="method", fixed=False),
            figures.over("workers", "test_error", color="method", fixed=False),
            figures.update_times(),
            figures.curves("test_error", against="seconds", panels="workers"),
        ],
    )
