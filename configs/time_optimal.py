"""Which asynchronous method is fastest when most workers are slow?

Worker i takes sqrt(i) times as long as the first (`:linear`: i times). The result is
the time until the full gradient of logistic regression on breast cancer data is small,
with one example per gradient. The methods are ASGD, also with steps capped at P / tau
(Mishchenko et al., arXiv:2206.07638), Rennala (arXiv:2305.12387), Ringmaster
(arXiv:2501.16168), Ringleader (arXiv:2509.22860) and MindFlayer (arXiv:2410.04285),
with step, batch, bound and time tuned.

    python -m experiments.main --config=configs/time_optimal.py --workdir=runs/optimal
"""

import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Effect,
    Experiment,
    Range,
    Search,
    Simulation,
    along,
    configs,
    figures,
    percent,
)
from experiments.running.evaluation import gradient_norm
from experiments.tasks import breast_cancer

SMALL = {"batch": (8,), "bound": (64,), "allotted_seconds": (4.0,), "target": 0.2}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = configs.at_least(1, "workers")
LIMITS |= configs.at_least(
    0, "shift_seconds", "mean_seconds", "target", "allotted_seconds", "l2"
)
LIMITS |= configs.positive("seconds", "tolerance")


def get_config(speeds: str = "sqrt") -> ConfigDict:
    """The config: six methods on clusters of three sizes."""
    return ConfigDict(
        dict(
            speeds=speeds,  # worker i = 1, 2, ... takes sqrt(i), or i, times as long
            workers=(32, 128),
            shift_seconds=0.5,  # the constant part of the time of a gradient
            mean_seconds=0.5,  # mean of the exponential part
            seconds=600.0 if speeds == "linear" else 300.0,  # simulated
            target=0.05,  # the norm of the gradient to reach
            batch=(4, 8, 16),  # gradients per update of Rennala
            bound=(16, 64),  # staleness that Ringmaster accepts, updates
            allotted_seconds=(2.0, 4.0),  # for a gradient of MindFlayer
            l2=0.1,  # penalty (l2 / 2) |w|^2
            seeds=5,
            tolerance=0.1,  # tolerance of the search, as a share of the time
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each method, threshold and number of workers."""
    protocols, most = dj.cluster.protocols, max(config.bound)
    slower = configs.named("speeds", config.speeds, dict(sqrt=np.sqrt, linear=np.array))
    service = dj.cluster.shifted_exponential(config.shift_seconds, config.mean_seconds)
    rules = {"ASGD": protocols.k_async(1), "ASGD capped": protocols.k_async(1)}
    rules |= {f"Rennala, {n} a batch": protocols.rennala(n) for n in config.batch}
    rules |= {f"Ringmaster, below {n}": protocols.ringmaster(n) for n in config.bound}
    rules[f"Ringmaster stopping at {most}"] = protocols.ringmaster(most, stop=True)
    rules["Ringleader"] = protocols.ringleader()
    for allotted in config.allotted_seconds:
        rules[f"MindFlayer, {allotted:g} s"] = protocols.mindflayer(1, allotted)

    def arm(method, workers):
        def server(learning_rate):
            cap = dj.scale_by_staleness(dj.modulation.capped(workers))
            sgd = optax.sgd(learning_rate)
            return optax.chain(sgd, cap) if method == "ASGD capped" else sgd

        factors = slower(np.arange(1.0, workers + 1)).tolist()
        cluster = dj.cluster.Cluster(workers, service, slowdown=factors)
        tables = {"Ringleader": rules["Ringleader"].aggregation(workers)}.get(method)
        training = along(Simulation(cluster, rules[method]), server, aggregation=tables)
        return dict(method=method, workers=workers), training

    time = figures.TimeTo("gradient_norm", config.target)
    fewest, *more = sorted(config.workers)
    sizes = " and ".join(map(str, more))
    return Experiment(
        question="Which asynchronous method is fastest when most workers are slow?",
        task=breast_cancer(batch_size=1, l2=config.l2),
        arms=[arm(method, workers) for workers in config.workers for method in rules],
        grid={"learning_rate": Range(0.006, 1.6)},
        seeds=config.seeds,
        tuned_by=time,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        seconds=config.seconds,
        evaluations=60,
        metrics={"gradient_norm": gradient_norm},
        answer=[
            Effect(
                metric=time,
                against={"method": "ASGD"},
                size=percent(10),
                where={"workers": max(config.workers)},
                name=f"time to the target on {max(config.workers)} workers",
            ),
            Effect(
                metric=time,
                against={"workers": fewest},
                size=percent(10),
                name=f"time to the target on {sizes} workers",
            ),
        ],
        figures=[figures.bars(time, color="workers", title="How soon is it there?")],
    )
