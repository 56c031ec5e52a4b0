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
from experiments import Claim, Experiment, Simulation, along, configs, figures, tasks
from experiments.results.measures import kept, mean, tuned


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

    def fixed(n, law):
        return kept("test_accuracy", best_at=dict(n=1, law="none"), n=n, law=law)

    def accuracy(text, measure, about, within=0.02):
        return Claim(f"Test accuracy, {text}", measure, about=about, within=within)

    return Experiment(
        question="Does dividing by staleness rescue n-softsync?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[arm(n) for n in config.n],
        grid={
            "learning_rate": config.learning_rate,
            "law": {"none": 0, "inverse": 1, "by_mean": 2},
        },
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        examples=config.examples,
        claims=[
            accuracy("n = 1", fixed(1, "none"), 0.937),
            Claim(
                "At the step for n = 1, n = 30 and no law: failed, or a guess",
                lambda found: not fixed(30, "none")(found) > 0.5,
            ),
            accuracy("n = 15, the same step, inverse", fixed(15, "inverse"), 0.96),
            accuracy("n = 30, the same, inverse", fixed(30, "inverse"), 0.957),
            accuracy("n = 30, the same step, by mean", fixed(30, "by_mean"), 0.956),
            accuracy(
                "n = 30, no law, step tuned",
                tuned("test_accuracy", n=30, law="none"),
                0.963,
            ),
            Claim(
                "Mean staleness of n = 15",
                mean("staleness_mean", n=15),
                about=staleness(15),
                within=0.3,
            ),
            Claim(
                "Mean staleness of n = 30",
                mean("staleness_mean", n=30),
                about=staleness(30),
                within=0.3,
            ),
        ],
        figures=[
            figures.over("n", "test_error", color="law"),
            figures.staleness(theory=staleness),
            figures.curves("test_error", against="examples", panels="n", color="law"),
        ],
        notes=(
            "At the step that is best for n = 1 training fails from n = 6 on, and"
            " either law rescues it: as published. With the step tuned for each n,"
            " plain SGD does as well as either law at every n: the law is a step size."
            " The step that is best for n = 1, 0.03, is chancy: there it is 0.937"
            " accurate under these seeds, and 0.947 under the seeds that chose it."
        ),
    )
