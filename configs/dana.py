"""Does a momentum for each worker help when many workers are asynchronous?

One momentum on the server collects gradients of all workers, and each gradient was
computed before the momentum of the others moved the model. DANA (Hakimi et al.,
arXiv:1907.11612) keeps a Nesterov momentum for each worker, and a worker computes its
gradient at the point to which all these momenta will move the model. It is compared
with three momenta on the server: heavy ball, Nesterov's, and a slow one, which decays
as DANA's do, by beta in P gradients. All train on scikit-learn's digits by asynchronous
SGD with the same number of gradients.

    python -m experiments.main --config=configs/dana.py --workdir=runs/dana
"""

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Effect, Experiment, Simulation, along, figures, points, tasks
from experiments.configs import at_least, positive

LIMITS = at_least(1, "workers", "width")
LIMITS |= positive("learning_rate")


def get_config() -> ConfigDict:
    """The config: four momenta and three numbers of workers."""
    return ConfigDict(
        dict(
            workers=(1, 8, 32),  # with memoryless times
            decay=(0.0, 0.5, 0.9, 0.97, 0.99, 0.997),  # beta; 0 is no momentum
            learning_rate=(0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.3, 1.0),
            width=16,  # hidden units
            batch_size=32,  # examples per gradient
            updates=1000,
            seeds=20,
            tuning_seeds=6,  # seeds that choose step and decay; not reported
        )
    )


def one_slow(decay: jax.Array, workers: int) -> optax.GradientTransformation:
    """A momentum m that adds beta m / (1 - beta) to g, and decays by beta^(1 / P)."""
    kept = jnp.power(decay, 1.0 / workers)
    average = optax.ema(kept, debias=False)

    def update(grads, state, params=None):
        means, state = average.update(grads, state, params)
        ahead = decay / (1.0 - decay)
        return jax.tree.map(lambda g, m: g + ahead * m, grads, means), state

    return optax.GradientTransformation(average.init, update)


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each momentum and number of workers."""

    def momenta(workers):
        def behind(rule):
            return lambda learning_rate, decay: optax.chain(
                rule(decay), optax.scale(-learning_rate)
            )

        return {
            "heavy ball": behind(optax.trace),
            "Nesterov": behind(lambda decay: optax.trace(decay, nesterov=True)),
            "DANA": behind(lambda decay: dj.dana(decay, workers=workers)),
            "one slow": behind(lambda decay: one_slow(decay, workers)),
        }

    def arms(workers):
        memoryless = dj.cluster.Cluster(workers, dj.cluster.exponential(1.0))
        simulated = Simulation(memoryless, dj.cluster.protocols.k_async(1))
        for name, make in momenta(workers).items():
            yield dict(momentum=name, workers=workers), along(simulated, make)

    def dana_beside(other, said="", **where):
        return Effect(
            metric="test_error",
            against={"momentum": other},
            size=points(1),
            where={"momentum": ("DANA", other), **where},
            name=f"test error of DANA{said}",
        )

    each = dict(color="momentum", fixed=False)
    at = dict(only={"decay": (0.9,)}, name="at_0.9")
    return Experiment(
        question="Does a momentum for each worker help when many are asynchronous?",
        task=tasks.digits_mlp(width=config.width, batch_size=config.batch_size),
        arms=[arm for workers in config.workers for arm in arms(workers)],
        grid={"learning_rate": config.learning_rate, "decay": config.decay},
        seeds=config.seeds,
        tuned=("learning_rate", "decay"),
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        evaluations=5,
        answer=[
            dana_beside("Nesterov", " at a momentum of 0.9", decay=0.9),
            dana_beside("Nesterov"),
            dana_beside("one slow"),
        ],
        figures=[
            figures.over(
                "workers", **each, title="Which momentum bears many workers, tuned?"
            ),
            figures.over("workers", **each, **at, title="And if it is 0.9?"),
            figures.best_step("workers", "learning_rate", color="momentum"),
        ],
    )
