"""Does dividing each gradient's rate by its staleness rescue n-softsync?

Thirty workers, four examples a gradient, an MLP on scikit-learn's digits; the server
updates after P / n gradients, so that their staleness is about n. At the step that is
best for n = 1, kept for all n: no law, each gradient's rate divided by its staleness
(Zhang et al., arXiv:1511.05950), and the rate divided by the mean staleness (Rudra,
arXiv:1509.04210). Beside it, the step tuned anew for each n and law. All use the same
number of examples; momentum 0.9 sits at the server.

    python -m experiments.main --config=configs/softsync.py --workdir=runs/softsync

configs/tradeoff.py has accuracy against run time of the same protocols.
"""

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
    tasks,
)
from experiments.results.estimates import Measure, estimate
from experiments.results.measures import difference, kept, mean, tuned
from experiments.results.tables import Found

LIMITS = configs.at_least(1, "workers", "examples")
LIMITS |= configs.positive("learning_rate")
LIMITS |= configs.below_one("momentum")


def get_config() -> ConfigDict:
    """Equal workers with nearly constant service times."""
    return ConfigDict(
        dict(
            workers=30,
            n=(1, 2, 6, 15, 30),  # an update after workers / n gradients
            learning_rate=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
            momentum=0.9,
            service_spread=0.05,  # of a gradient's time of 1 s, standard deviation
            batch_size=4,  # examples a gradient
            examples=27_000,  # twenty times all of them
            seeds=5,
            tuning_seeds=5,  # that choose the step size, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """A program for each n; the law is an axis."""
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
        """The mean: each update ages the other P - 1 by one, and uses P // n."""
        return (config.workers - 1) / (config.workers // n)

    def server(learning_rate):
        return optax.sgd(learning_rate, config.momentum)

    def arm(n):
        inverse = dj.modulation.inverse
        laws = (lambda tau: 1.0, inverse, lambda tau: inverse(staleness(n)))

        def weighted(law):
            return dj.scale_by_staleness(configs.one_of(laws, law))

        simulated = Simulation(cluster, dj.cluster.protocols.n_softsync(n))
        return dict(n=n), along(simulated, server, each=weighted)

    return Experiment(
        question="Does dividing by staleness rescue n-softsync?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[arm(n) for n in config.n],
        grid={
            "learning_rate": config.learning_rate,
            "law": {"none": 0, "inverse": 1, "by the mean": 2},
        },
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        examples=config.examples,
        answer=answer,
        published=published(config),
        records=records(config),
        figures=[
            figures.over("n", "test_error", color="law", fixed={"law": "none"}),
            figures.staleness(theory=staleness),
            figures.curves("test_error", against="examples", panels="n", color="law"),
        ],
    )


def fixed(n: int, law: str) -> Measure:
    """Test accuracy at the step that is best for n = 1; a guess if it ends higher."""
    at_one = dict(n=1, law="none")
    return kept("test_accuracy", best_at=at_one, lost=0.1, n=n, law=law)


def own_step(n: int, law: str) -> Measure:
    """Test accuracy at the step that is best for this n and law."""
    return tuned("test_accuracy", n=n, law=law)


_ZHANG = "Zhang, Gupta, Lian, Liu (2016), arXiv:1511.05950"
_CIFAR = "a convolutional network on CIFAR-10, 30 learners, momentum 0.9"


def published(config: ConfigDict) -> list[Published]:
    """At the step for n = 1, as the paper has it, and with the step tuned."""
    del config
    return [
        Published(
            text="With the step for n = 1, 30-softsync does not learn without a law",
            source=f"{_ZHANG}, Section 5.1",
            said="an error of 90 %",
            setting=_CIFAR,
            measure=fixed(30, "none"),
            at_most=0.5,
            bound_is_ours=True,
        ),
        Published(
            text="Rates divided by staleness learn there as well as n = 1",
            source=f"{_ZHANG}, Section 5.1",
            said="about the error of 1-softsync and of hardsync",
            setting=_CIFAR,
            measure=difference(fixed(30, "inverse"), fixed(1, "none")),
            at_least=-0.02,
            bound_is_ours=True,
        ),
    ]


def records(config: ConfigDict) -> list[Record]:
    """Accuracies at the step for n = 1 and at each one's own, and a mean staleness."""
    del config
    return [
        Record("Test accuracy, n = 1", fixed(1, "none"), 0.9368, 0.0047),
        Record("n = 30, inverse, the same step", fixed(30, "inverse"), 0.9568, 0.0025),
        Record("n = 30, by mean, the same", fixed(30, "by the mean"), 0.9559, 0.0026),
        Record("Step tuned, n = 30, no law", own_step(30, "none"), 0.9626, 0.0033),
        Record("Mean staleness, n = 30", mean("staleness_mean", n=30), 28.935, 0.0003),
    ]


def answer(found: Found) -> str:
    """What the law gains at the step for n = 1, and with the step tuned."""
    gained = difference(own_step(30, "inverse"), own_step(30, "none"))
    low, high = estimate(gained, found).interval()
    changes = f"the law changes accuracy by {low:+.3f} to {high:+.3f}"
    if low <= 0.0 <= high:
        changes = "the law changes nothing beyond what seeds do"
    return (
        "At the step that is best for n = 1, 30-softsync has a test accuracy of"
        f" {fixed(30, 'none')(found):.3f} without a law and of"
        f" {fixed(30, 'inverse')(found):.3f} with rates divided by staleness. With the"
        f" step tuned for each, {changes}."
    )
