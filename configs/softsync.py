"""Does dividing each gradient's rate by its staleness rescue n-softsync?

Thirty workers with four examples per gradient train an MLP on scikit-learn's digits.
The server updates after P / n gradients, so that their staleness is about n. Three laws
are compared at one step for all n, the best step for n = 1: no law, each gradient's
rate divided by its staleness (Zhang et al., arXiv:1511.05950), and the rate divided by
the mean staleness (Rudra, arXiv:1509.04210). The step is searched for each n and law.
All use the same number of examples; the server has a momentum of 0.9.

    python -m experiments.main --config=configs/softsync.py --workdir=runs/softsync

`configs/tradeoff.py` compares accuracy with run time for the same protocols.
"""

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
    tasks,
)

SMALL = {"examples": 8_000}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = configs.at_least(1, "workers", "examples")
LIMITS |= configs.positive("tolerance")
LIMITS |= configs.below_one("momentum")


def get_config() -> ConfigDict:
    """The config: equal workers with nearly constant service times."""
    return ConfigDict(
        dict(
            workers=30,
            n=(1, 6, 30),  # the server updates after workers / n gradients
            momentum=0.9,
            service_spread=0.05,  # standard deviation of a gradient's time, mean 1 s
            batch_size=4,  # examples per gradient
            examples=27_000,  # twenty epochs
            seeds=5,
            tolerance=0.1,  # tolerance of the search, as a share of the loss
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each n and law."""
    n = min(config.n)
    most = (config.examples // config.batch_size + 1) * n - 1
    if config.workers > most:
        raise ValueError(
            f"config.workers must be at most {most:,}, so that config.examples ="
            f" {config.examples:,} are enough for an update of config.workers // {n}"
            f" gradients of config.batch_size = {config.batch_size} examples, got"
            f" {config.workers:,}."
        )
    lognormal = dj.cluster.lognormal(1.0, config.service_spread)
    cluster = dj.cluster.Cluster(config.workers, lognormal)

    def staleness(n):
        """The mean staleness: an update adds 1 to P - 1 others, and uses P // n."""
        return (config.workers - 1) / (config.workers // n)

    def server(learning_rate):
        return optax.sgd(learning_rate, config.momentum)

    def laws(n):
        inverse = dj.modulation.inverse
        return {
            "none": lambda tau: 1.0,
            "inverse": inverse,
            "by the mean": lambda tau: inverse(staleness(n)),
        }

    def arm(n, law):
        simulated = Simulation(cluster, dj.cluster.protocols.n_softsync(n))
        weighted = dj.scale_by_staleness(laws(n)[law])
        return dict(n=n, law=law), along(simulated, server, each=weighted)

    first = {"n": n, "law": "none"}

    return Experiment(
        question="Does dividing by staleness rescue n-softsync?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[arm(n, law) for n in config.n for law in laws(n)],
        grid={"learning_rate": Range(0.001, 0.3)},
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        also_at=[first],
        examples=config.examples,
        answer=[
            Effect(
                metric="test_error",
                against=first,
                size=points(1),
                where={"law": ("none", "inverse")},
                kept=first,
            ),
            Effect(metric="test_error", against={"law": "none"}, size=points(1)),
        ],
        figures=[
            figures.over("n", "test_error", color="law", fixed={"law": "none"}),
            figures.staleness(theory=staleness),
            figures.curves("test_error", against="examples", panels="n", color="law"),
        ],
    )
