"""Which asynchronous method is fastest when most workers are slow?

Worker i takes sqrt(i) times as long as the first (`:linear`: i times). Measured is the
time until the full gradient is small; logistic regression on breast cancer data, one
example a gradient. ASGD, with its steps also capped at P / tau (Mishchenko et al.,
arXiv:2206.07638), Rennala (arXiv:2305.12387), Ringmaster (arXiv:2501.16168), Ringleader
(arXiv:2509.22860), MindFlayer (arXiv:2410.04285); step, batch, bound and time tuned.

    python -m experiments.main --config=configs/time_optimal.py --workdir=runs/optimal
"""

import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Experiment,
    Published,
    Record,
    Simulation,
    along,
    configs,
    figures,
)
from experiments.results.estimates import Measure
from experiments.results.measures import between, least, ratio, seconds_to
from experiments.results.tables import Found
from experiments.running.evaluation import gradient_norm
from experiments.tasks import breast_cancer

METHODS = "ASGD", "ASGD capped", "Rennala", "Ringmaster", "Ringleader", "MindFlayer"
SQRT = (
    (54.97, 45.81, 82.1, 80.9, 45.29, 56.56, 0.9853),
    (5.2, 2.3, 11.0, 11.0, 2.9, 13.0, 0.0033),
)
LINEAR = (
    (82.17, 222.7, 160.5, 160.5, 93.67, 91.56, 1.0),
    (8.1, 20.0, 22.0, 22.0, 11.0, 11.0, 0.0),
)


LIMITS = configs.at_least(1, "workers")
LIMITS |= configs.at_least(
    0, "shift_seconds", "mean_seconds", "target", "allotted_seconds", "l2"
)
LIMITS |= configs.positive("seconds", "learning_rate")


def get_config(speeds: str = "sqrt") -> ConfigDict:
    """Six methods on clusters of three sizes."""
    return ConfigDict(
        dict(
            speeds=speeds,  # worker i = 1, 2, ... takes sqrt(i), or i, times as long
            workers=(32, 128),
            shift_seconds=0.5,  # of a gradient, to which an exponential time is added
            mean_seconds=0.5,  # of that
            seconds=600.0 if speeds == "linear" else 300.0,  # simulated
            target=0.05,  # of the gradient's norm
            batch=(4, 8, 16),  # gradients in an update of Rennala
            bound=(16, 64),  # staleness that Ringmaster accepts, updates
            allotted_seconds=(2.0, 4.0),  # to a gradient of MindFlayer
            learning_rate=(0.006, 0.012, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6),
            l2=0.1,  # penalty (l2 / 2) |w|^2
            seeds=5,
            tuning_seeds=3,  # that choose, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """A program for each method, threshold and number of workers."""
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
    return Experiment(
        question="Which asynchronous method is fastest when most workers are slow?",
        task=breast_cancer(batch_size=1, l2=config.l2),
        arms=[arm(method, workers) for workers in config.workers for method in rules],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        tuned_by=time,
        seconds=config.seconds,
        evaluations=60,
        measure={"gradient_norm": gradient_norm},
        answer=lambda found: answer(found, config),
        published=published(config),
        records=records(config),
        figures=[figures.bars(time, color="workers", title="How soon is it there?")],
    )


def until(config: ConfigDict, method: str, workers: int) -> Measure:
    """Seconds to the target, at the step and threshold that other seeds find best."""
    thresholds = {
        "Rennala": [f", {size} a batch" for size in config.batch],
        "Ringmaster": [f", below {bound}" for bound in config.bound],
        "MindFlayer": [f", {most:g} s" for most in config.allotted_seconds],
    }
    at = dict(workers=workers)
    return least(
        [
            seconds_to("gradient_norm", config.target, method=method + own, **at)
            for own in thresholds.get(method, [""])
        ]
    )


def over(config: ConfigDict, this: str, other: str, few: int = 128) -> Measure:
    """Seconds of a method on 128 workers over another's on as many, or on few."""
    return ratio(until(config, this, 128), until(config, other, few))


def published(config: ConfigDict) -> list[Published]:
    """The order of three methods."""
    figure = dict(source="Maranjyan, Tyurin, Richtarik (2025), arXiv:2501.16168")
    figure["setting"] = "a quadratic, 6174 workers of t_i = i + |N(0, i)|, and MNIST"
    figure["said"] = "faster than Rennala and Delay-Adaptive ASGD"
    stated = []
    for other in ("Rennala", "ASGD capped"):
        text = f"On 128 workers Ringmaster is faster than {other}"
        measure = over(config, "Ringmaster", other)
        stated.append(Published(text=text, measure=measure, at_most=1.0, **figure))
    return stated


def records(config: ConfigDict) -> list[Record]:
    """Seconds of three methods on 32 and on 128 workers: values, and spreads.

    Rennala drops each gradient of an earlier update, so a worker that is slower than an
    update never counts: its 128 workers are about as fast as 32 by construction.
    """
    own = [(m, n) for m in ("ASGD", "Rennala", "Ringmaster") for n in (32, 128)]
    told = [(f"Seconds of {name} on {n}", until(config, name, n)) for name, n in own]
    told.append(("Rennala, 128 over 32", over(config, "Rennala", "Rennala", 32)))
    known = dict(sqrt=SQRT, linear=LINEAR).get(config.speeds, ((), ()))
    return [Record(*a, b, c) for a, b, c in zip(told, *known, strict=False)]


def answer(found: Found, config: ConfigDict) -> str:
    """Times on 128 workers, and what slow workers cost."""
    seconds = {name: until(config, name, 128)(found) for name in METHODS}
    first, second, *_ = sorted(seconds, key=seconds.get)
    told = ", ".join(f"{name} {own:.0f} s" for name, own in seconds.items())
    gain = between(over(config, first, second), found)
    cost = [f"{n} {between(over(config, n, n, 32), found)}" for n in METHODS[:4]]
    return (
        f"On 128 workers the gradient's norm is {config.target:g} after these seconds:"
        f" {told.replace('inf s', 'not in time')}. {first} takes {gain} of the time of"
        f" {second}. Times on 128, over those on the fastest 32: {', '.join(cost)}."
    )
