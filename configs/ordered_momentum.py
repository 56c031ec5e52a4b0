"""Does momentum help asynchronous SGD if it takes gradients in order?

Heavy ball on the server decays with every gradient, at whichever version of the model a
worker computed it. Ordered momentum (Shi et al., arXiv:2407.19234) decays once for each
bucket of P gradients, and gives a late gradient the weight that it would have if
gradients arrived in the order of the reads. DANA has a momentum for each worker.
Asynchronous SGD trains on scikit-learn's digits with 8 and with 32 workers, whose times
are Pareto of shape 1.5, so that some gradients are very late. All rules have the same
number of gradients; step and momentum, which may be 0, are tuned for each.

    python -m experiments.main --config=configs/ordered_momentum.py --workdir=runs/order
"""

import functools

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Effect, Experiment, Simulation, along, figures, percent, tasks
from experiments.configs import at_least, positive

LIMITS = at_least(1, "workers", "width")
LIMITS |= positive("learning_rate")


def get_config() -> ConfigDict:
    """The config: three momenta and two numbers of workers."""
    return ConfigDict(
        dict(
            workers=(8, 32),
            tail=1.5,  # shape of the Pareto law of a gradient's time, mean 1 s
            decay=(0.0, 0.3, 0.5, 0.7, 0.9, 0.97),  # beta; 0 is no momentum
            learning_rate=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
            width=16,  # hidden units
            batch_size=32,  # examples per gradient
            updates=600,
            seeds=8,
            tuning_seeds=4,  # seeds that choose step and decay; not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each momentum and number of workers."""
    pareto = dj.cluster.pareto(1.0 - 1.0 / config.tail, config.tail)

    def arms(workers):
        rules = {
            "heavy ball": optax.trace,
            "DANA": functools.partial(dj.dana, workers=workers),
            "ordered": functools.partial(dj.ordered_momentum, workers=workers),
        }
        cluster = dj.cluster.Cluster(workers, pareto)
        simulated = Simulation(cluster, dj.cluster.protocols.k_async(1))
        for name, rule in rules.items():

            def server(learning_rate, decay, rule=rule):
                return optax.chain(rule(decay), optax.scale(-learning_rate))

            yield dict(momentum=name, workers=workers), along(simulated, server)

    def ordered_beside(other, said="", **where):
        return Effect(
            metric="train_loss",
            against={"momentum": other},
            size=percent(10),
            where={"momentum": ("ordered", other), **where},
            name=f"training loss of ordered momentum{said}",
        )

    at = dict(only={"decay": (0.9,)}, name="at_0.9")
    by = dict(color="momentum", fixed=False)
    return Experiment(
        question="Does momentum help asynchronous SGD if it takes gradients in order?",
        task=tasks.digits_mlp(width=config.width, batch_size=config.batch_size),
        arms=[arm for workers in config.workers for arm in arms(workers)],
        grid={"learning_rate": config.learning_rate, "decay": config.decay},
        seeds=config.seeds,
        tuned=("learning_rate", "decay"),
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        evaluations=10,
        answer=[
            ordered_beside("heavy ball"),
            ordered_beside("DANA"),
            ordered_beside("heavy ball", " at a momentum of 0.9", decay=0.9),
        ],
        figures=[
            figures.over("workers", "train_loss", **by, title="Which momentum, tuned?"),
            figures.over("workers", "train_loss", **by, **at, title="And at 0.9?"),
            figures.best_step("workers", "learning_rate", color="momentum"),
        ],
    )
