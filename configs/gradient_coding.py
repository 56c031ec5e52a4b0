"""Do dynamic clusters help gradient coding against stragglers that stay slow?

Twenty workers form five clusters. Each worker computes three parts of the data, so that
a cluster does not wait for its two slowest workers. A fifth of the workers is ten times
slower, for 5 to 50 tasks on average or for one. Dynamic clusters divide the slow
workers of the last update evenly (Buyukates et al., arXiv:2011.01922). Every update is
the full gradient, so that methods differ only in time. The task is logistic regression
on breast cancer data.

    python -m experiments.main --config=configs/gradient_coding.py \
        --workdir=runs/gradient_coding
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Effect, Experiment, Simulation, along, figures, percent
from experiments.configs import at_least, positive
from experiments.tasks import breast_cancer

LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "part_seconds", "l2")
LIMITS |= positive("learning_rate")


def get_config() -> ConfigDict:
    """The config: kinds of stragglers, for three protocols."""
    return ConfigDict(
        dict(
            workers=20,
            clusters=5,
            load=3,  # parts that each worker computes
            part_seconds=1.0,  # mean of a part; half is constant, half exponential
            slowdown=10.0,  # of a straggler
            slow_share=0.2,  # of the workers
            stay=(0.8, 0.9, 0.95, 0.98),  # chances that a straggler's next task is slow
            learning_rate=(0.1, 0.3, 1.0, 3.0, 10.0),
            updates=200,
            l2=0.1,  # penalty (l2 / 2) |w|^2
            seeds=40,
            tuning_seeds=3,  # seeds that choose the step size; not reported
        )
    )


ANEW = "drawn anew"


def stragglers(stay: float) -> str:
    """The label of stragglers that stay slow with this chance."""
    return f"stay slow, {stay:g}"


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: three protocols with each kind of straggler."""
    half, share = 0.5 * config.part_seconds, config.slow_share
    coding = dj.cluster.protocols.gradient_coding
    compared = {
        "no coding": dj.cluster.protocols.hardsync(),
        "static clusters": coding(config.clusters, config.load),
        "dynamic clusters": coding(config.clusters, config.load, dynamic=True),
    }

    def arm(kind, stay, scheme):
        service = dj.cluster.markov_stragglers(
            dj.cluster.shifted_exponential(half, half),
            config.slowdown,
            enter=(1 - stay) * share / (1 - share),
            leave=1 - stay,
        )
        cluster = dj.cluster.Cluster(config.workers, service)
        training = along(Simulation(cluster, compared[scheme]), optax.sgd)
        return dict(scheme=scheme, stragglers=kind), training

    kinds = {stragglers(stay): stay for stay in config.stay} | {ANEW: share}

    return Experiment(
        question="Do dynamic clusters help gradient coding?",
        task=breast_cancer(batch_size=config.workers, l2=config.l2),
        arms=[
            arm(kind, stay, scheme)
            for kind, stay in kinds.items()
            for scheme in compared
        ],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        answer=Effect(
            metric="seconds", against={"scheme": "static clusters"}, size=percent(10)
        ),
        figures=[
            figures.bars(
                "seconds",
                color="stragglers",
                title=f"How long do {config.updates} updates take?",
            ),
            figures.update_times(),
        ],
    )
