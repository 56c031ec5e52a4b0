"""Does momentum help asynchronous SGD if it takes gradients in order?

Heavy ball on the server decays with every gradient, whichever version it was read at.
Ordered momentum (Shi et al., arXiv:2407.19234) decays once for each bucket of P
gradients, and puts a late gradient where it would be if it had come in the order of the
reads. Asynchronous SGD of 8 and of 32 workers on scikit-learn's digits; the times are
Pareto of shape 1.5, so that some gradients are very late. Equally many gradients for
all, momentum 0.9 or none, and the step tuned for each.

    python -m experiments.main --config=configs/ordered_momentum.py --workdir=runs/order
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Experiment, Published, Record, Simulation, along, figures, tasks
from experiments.configs import at_least, positive
from experiments.results.estimates import Measure
from experiments.results.measures import between, ratio, tuned
from experiments.results.tables import Found

LIMITS = at_least(1, "workers", "width")
LIMITS |= positive("learning_rate")


def get_config() -> ConfigDict:
    """Two momenta and two numbers of workers."""
    return ConfigDict(
        dict(
            workers=(8, 32),
            tail=1.5,  # shape of the Pareto law of a gradient's time, mean 1 s
            decay=(0.0, 0.9),  # beta; 0 is no momentum, the same for both
            learning_rate=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
            width=16,  # hidden units
            batch_size=32,  # examples a gradient
            updates=600,
            seeds=8,
            tuning_seeds=4,  # that choose the step, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """A program for each momentum and number of workers."""
    pareto = dj.cluster.pareto(1.0 - 1.0 / config.tail, config.tail)

    def arms(workers):
        def ordered(decay):
            return dj.ordered_momentum(decay, workers=workers)

        cluster = dj.cluster.Cluster(workers, pareto)
        simulated = Simulation(cluster, dj.cluster.protocols.k_async(1))
        for name, rule in {"heavy ball": optax.trace, "ordered": ordered}.items():

            def server(learning_rate, decay, rule=rule):
                return optax.chain(rule(decay), optax.scale(-learning_rate))

            yield dict(momentum=name, workers=workers), along(simulated, server)

    by = dict(color="momentum", fixed=False)
    return Experiment(
        question="Does momentum help asynchronous SGD if it takes gradients in order?",
        task=tasks.digits_mlp(width=config.width, batch_size=config.batch_size),
        arms=[arm for workers in config.workers for arm in arms(workers)],
        grid={"learning_rate": config.learning_rate, "decay": config.decay},
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        evaluations=10,
        answer=answer,
        published=published(config),
        records=records(config),
        figures=[
            figures.over("workers", "train_loss", panels="decay", **by),
            figures.best_step("workers", panels="decay", color="momentum"),
        ],
    )


def loss(momentum: str, workers: int, decay: float = 0.9) -> Measure:
    """Training loss at the end, at the step that other seeds find best."""
    return tuned("train_loss", momentum=momentum, workers=workers, decay=decay)


def over_ball(workers: int) -> Measure:
    """Loss of ordered momentum over heavy ball's, both at 0.9."""
    return ratio(loss("ordered", workers), loss("heavy ball", workers))


def over_none(momentum: str, workers: int) -> Measure:
    """Loss of a momentum of 0.9 over the loss without momentum."""
    return ratio(loss(momentum, workers), loss(momentum, workers, 0.0))


def published(config: ConfigDict) -> list[Published]:
    """The abstract's three statements, with 32 workers."""
    del config
    paper = dict(source="Shi, Yang, Li (2024), arXiv:2407.19234, abstract")
    better = "better convergence performance compared with ASGD and other asynchronous"
    better += " methods with momentum"
    return [
        Published(
            text="With 32 workers heavy ball has a larger training loss than no"
            " momentum",
            said="naively incorporating momentum into ASGD can impede the convergence",
            measure=over_none("heavy ball", 32),
            at_least=1.0,
            **paper,
        ),
        Published(
            text="With 32 workers ordered momentum has a smaller training loss than"
            " heavy ball",
            said=better,
            measure=over_ball(32),
            at_most=1.0,
            **paper,
        ),
        Published(
            text="With 32 workers ordered momentum has a smaller training loss than no"
            " momentum",
            said=better,
            measure=over_none("ordered", 32),
            at_most=1.0,
            **paper,
        ),
    ]


def records(config: ConfigDict) -> list[Record]:
    """Losses over each other, with 8 and with 32 workers."""
    del config
    return [
        Record("Loss, ordered / heavy ball, 8 workers", over_ball(8), 0.4413, 0.046),
        Record("Loss, ordered / heavy ball, 32", over_ball(32), 0.3817, 0.021),
        Record("Loss, ordered / none, 32", over_none("ordered", 32), 0.5281, 0.027),
        Record("Loss, heavy ball / none, 32", over_none("heavy ball", 32), 1.383, 0.13),
    ]


def answer(found: Found) -> str:
    """Ordered momentum over heavy ball, and both over none."""
    eight, many = (between(over_ball(workers), found) for workers in (8, 32))
    ordered = between(over_none("ordered", 32), found)
    ball = between(over_none("heavy ball", 32), found)
    return (
        "At a momentum of 0.9, with the step tuned for each, the training loss of"
        f" ordered momentum over heavy ball's is {eight} with 8 workers and {many}"
        f" with 32. Over the loss without momentum, with 32 workers: ordered {ordered},"
        f" heavy ball {ball}."
    )
