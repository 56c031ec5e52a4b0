"""How many gradients should an update wait for, and of whom?

The four schemes of Dutta et al. (arXiv:1803.01113) with eight workers: an update after
the gradients of K distinct workers or after any K, with the rest canceled (sync) or
left to go on (async). Softmax regression on scikit-learn's digits, everyone for the
same simulated time, each arm at its best step size. Arms that are the same are run
once: K = 1 has two, and K = 8 distinct workers are all of them.

Service times are exponential with mean 1 s; `:shifted` adds one second to each, and
`:pareto` has P(T > t) = 1 / t^2, of infinite variance.

    python -m experiments.main --config=configs/k_async.py --workdir=runs/k_async
    python -m experiments.main --config=configs/k_async.py:shifted \
        --workdir=runs/k_async_shifted
    python -m experiments.main --config=configs/k_async.py:pareto \
        --workdir=runs/k_async_pareto
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Claim, Experiment, Simulation, along, configs, figures, tasks
from experiments.measures import mean, tuned

SERVICES = {
    "exponential": dj.cluster.exponential(1.0),
    "shifted": dj.cluster.shifted_exponential(1.0, 1.0),
    "pareto": dj.cluster.pareto(1.0, 2.0),
}


def get_config(service: str = "exponential") -> ConfigDict:
    """Thirteen arms under one law of service times."""
    return ConfigDict(
        dict(
            service=service,  # or my_module:law, a `cluster.ServiceTime`
            workers=8,
            seconds=300.0,  # simulated
            learning_rate=(0.1, 0.3, 1.0, 3.0, 10.0),
            batch_size=4,  # examples a gradient
            seeds=3,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """Four schemes and their K."""
    protocols, workers = dj.cluster.protocols, config.workers
    service = configs.named("service", config.service, SERVICES)
    cluster = dj.cluster.Cluster(workers, service)
    schemes = {
        scheme.__name__: scheme
        for scheme in (
            *(protocols.k_sync, protocols.k_batch_sync),
            *(protocols.k_async, protocols.k_batch_async),
        )
    }
    every = [("k_sync", 1), ("k_async", 1)]
    every += [(name, k) for k in (2, 4) for name in schemes]
    every += [(name, 8) for name in schemes if name != "k_async"]

    def staleness(scheme, k):
        """Long-run means, whatever the service times."""
        found = {"k_async": workers / k - 1, "k_batch_async": (workers - 1) / k}
        return found.get(scheme, 0.0)

    def update_seconds(scheme, k):
        try:
            return schemes[scheme](int(k)).update_seconds(workers, service)
        except ValueError:  # no closed form
            return None

    return Experiment(
        question="How many gradients should an update wait for, and of whom?",
        task=tasks.digits_mlp(depth=0, batch_size=config.batch_size),
        arms=[
            (
                dict(scheme=name, k=k),
                along(Simulation(cluster, schemes[name](k)), optax.sgd),
            )
            for name, k in every
        ],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        seconds=config.seconds,
        claims=claims(config.service, staleness),
        figures=[
            figures.over("k", "test_error", color="scheme", fixed=False),
            figures.curves("test_error", against="seconds", panels="scheme"),
            figures.update_times(theory=update_seconds),
            figures.staleness(theory=staleness),
        ],
        notes=(
            "With exponential times K = 2 is best in 300 s: enough gradients an update"
            " to be quiet, without the stragglers. With a second added a canceled"
            " gradient is a second lost, and the asynchronous schemes win, K = 1 first;"
            " with heavy tails those do that take any gradients."
        ),
    )


def claims(service, staleness):
    """What was measured under each law."""

    def updates(scheme, k, about):
        measure = mean("updates", scheme=scheme, k=k)
        text = f"Updates of {scheme}({k})"
        return Claim(text, measure, about=about, within=0.05 * about)

    def accuracy(scheme, k, about):
        measure = tuned("test_accuracy", scheme=scheme, k=k)
        text = f"Test accuracy of {scheme}({k})"
        return Claim(text, measure, about=about, within=0.02)

    def age(scheme, k):
        measure = mean("staleness_mean", scheme=scheme, k=k)
        theory = staleness(scheme, k)
        return Claim(f"Staleness of {scheme}({k})", measure, about=theory, within=0.05)

    return {
        "exponential": [
            updates("k_sync", 4, 460),
            updates("k_async", 4, 460),
            updates("k_batch_async", 4, 580),
            age("k_async", 4),
            age("k_batch_async", 4),
            accuracy("k_sync", 2, 0.963),
            accuracy("k_sync", 8, 0.942),
            accuracy("k_async", 1, 0.946),
        ],
        "shifted": [
            updates("k_sync", 8, 75),
            updates("k_batch_async", 8, 147),
            accuracy("k_sync", 1, 0.907),
            accuracy("k_async", 1, 0.949),
        ],
        "pareto": [
            updates("k_sync", 8, 23),
            updates("k_batch_async", 8, 138),
            accuracy("k_sync", 8, 0.861),
            accuracy("k_batch_async", 4, 0.955),
        ],
    }.get(service, [])
