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
from experiments.results.measures import mean, tuned

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
            seeds=5,
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
        tuned="learning_rate",
        seconds=config.seconds,
        claims=claims(config, staleness, update_seconds),
        figures=[
            figures.over("k", "test_error", color="scheme", fixed=False),
            figures.curves("test_error", against="seconds", panels="scheme"),
            figures.update_times(theory=update_seconds),
            figures.staleness(theory=staleness),
        ],
        notes=(
            "With exponential times an update that waits for all eight is behind after"
            " 300 s, 0.927; all other schemes are closer than their seeds. With a"
            " second added a canceled gradient is a second lost: the schemes that take"
            " any gradients win, 0.944 to 0.952, and K-sync with K = 1 is last, 0.881."
            " With heavy tails only waiting for all costs much, 0.877."
        ),
    )


def claims(config, staleness, update_seconds):
    """What theory says of updates and staleness, and what was measured of accuracy."""

    def updates(scheme, k, about=None):
        expected = about or config.seconds / update_seconds(scheme, k)
        return Claim(
            f"Updates of {scheme}({k})",
            mean("updates", scheme=scheme, k=k),
            about=expected,
            within=0.05 * expected,
        )

    def accuracy(scheme, k, about):
        measure = tuned("test_accuracy", scheme=scheme, k=k)
        text = f"Test accuracy of {scheme}({k})"
        return Claim(text, measure, about=about, within=0.02)

    def age(scheme, k):
        measure = mean("staleness_mean", scheme=scheme, k=k)
        theory = staleness(scheme, k)
        return Claim(f"Staleness of {scheme}({k})", measure, about=theory, within=0.05)

    match config.service:
        case "exponential":
            return [
                updates("k_sync", 4),
                updates("k_async", 4),
                updates("k_batch_async", 4),
                age("k_async", 4),
                age("k_batch_async", 4),
                accuracy("k_sync", 2, 0.952),
                accuracy("k_sync", 8, 0.927),
                accuracy("k_async", 1, 0.953),
            ]
        case "shifted":
            return [
                updates("k_sync", 8),
                updates("k_batch_async", 8),
                accuracy("k_sync", 1, 0.881),
                accuracy("k_async", 1, 0.947),
            ]
        case "pareto":  # of infinite variance: 300 s are far from the long run
            return [
                updates("k_sync", 8, 23),
                updates("k_batch_async", 8, 138),
                accuracy("k_sync", 8, 0.877),
                accuracy("k_batch_async", 4, 0.935),
            ]
    return []
