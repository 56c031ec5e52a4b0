"""How many gradients should an update wait for, and of which workers?

Eight workers use the four schemes of Dutta et al. (arXiv:1803.01113): an update waits
for gradients of K distinct workers or for any K gradients, and the other gradients are
canceled (sync) or go on (async). Plain SGD trains softmax regression on scikit-learn's
digits, for the same simulated time in each arm. The step of each arm is searched.

Service times are exponential with mean 1 s; `:shifted` adds one second to each, and
`:pareto` has P(T > t) = 1 / t^2, of infinite variance.

    python -m experiments.main --config=configs/k_async.py --workdir=runs/k_async
    python -m experiments.main --config=configs/k_async.py:shifted --workdir=runs/shift
    python -m experiments.main --config=configs/k_async.py:pareto --workdir=runs/pareto
"""

import contextlib
import functools

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
    points,
)
from experiments.tasks import digits_mlp

SERVICES = {
    "exponential": dj.cluster.exponential(1.0),
    "shifted": dj.cluster.shifted_exponential(1.0, 1.0),
    "pareto": dj.cluster.pareto(1.0, 2.0),
}
SCHEMES = {
    "K-sync": dj.cluster.protocols.k_sync,
    "K-batch-sync": dj.cluster.protocols.k_batch_sync,
    "K-async": dj.cluster.protocols.k_async,
    "K-batch-async": dj.cluster.protocols.k_batch_async,
}

LIMITS = configs.at_least(1, "workers")
LIMITS |= configs.positive("seconds", "tolerance")


def get_config(service: str = "exponential") -> ConfigDict:
    """The config: sixteen arms under one law of service times."""
    return ConfigDict(
        dict(
            service=service,  # or my_module:law, a `cluster.ServiceTime`
            workers=8,
            k=(1, 2, 4, 8),  # gradients per update
            seconds=300.0,  # simulated
            batch_size=4,  # examples per gradient
            seeds=20,
            tolerance=0.05,  # tolerance of the search, as a share of the loss
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each scheme and K."""
    service = configs.named("service", config.service, SERVICES)
    cluster = dj.cluster.Cluster(config.workers, service)

    def arm(scheme, k):
        simulated = Simulation(cluster, SCHEMES[scheme](k))
        return dict(scheme=scheme, K=k), along(simulated, optax.sgd)

    return Experiment(
        question="How many gradients should an update wait for, and of which workers?",
        task=digits_mlp(depth=0, batch_size=config.batch_size),
        arms=[arm(scheme, k) for k in config.k for scheme in SCHEMES],
        grid={"learning_rate": Range(0.03, 10.0)},
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        seconds=config.seconds,
        answer=Effect(
            metric="test_accuracy",
            against={"scheme": "K-async", "K": 1},
            size=points(1),
            where={"K": (1, 2, config.workers)},
            name="test accuracy after as many seconds",
        ),
        figures=[
            figures.over(
                "K",
                "test_error",
                color="scheme",
                fixed=False,
                x_label="gradients that an update waits for, K",
            ),
            figures.curves("test_error", against="seconds", panels="scheme"),
            figures.update_times(theory=functools.partial(update_seconds, config)),
            figures.staleness(theory=functools.partial(staleness, config)),
        ],
    )


def update_seconds(config: ConfigDict, scheme: str, K: int) -> float | None:  # noqa: N803
    """The theory of the mean seconds per update; None without a closed form."""
    service = configs.named("service", config.service, SERVICES)
    with contextlib.suppress(ValueError):
        return SCHEMES[scheme](int(K)).update_seconds(config.workers, service)
    return None


def staleness(config: ConfigDict, scheme: str, K: int) -> float:  # noqa: N803
    """The theory of the mean staleness in the long run, for any service times."""
    workers = config.workers
    means = {"K-async": workers / K - 1, "K-batch-async": (workers - 1) / K}
    return means.get(scheme, 0.0)
