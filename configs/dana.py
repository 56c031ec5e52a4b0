"""Does a momentum for each worker help when many workers are asynchronous?

One momentum on the server takes in gradients of all workers, and each was computed
before the momentum of the others moved the model. DANA (Hakimi et al.,
arXiv:1907.11612) keeps a Nesterov momentum for each worker, and a worker takes its
gradient where all of these momenta will have moved the model. The server's momenta are
heavy ball, Nesterov's, and one slow one, which decays as DANA's do: by beta within P
gradients. Asynchronous SGD on scikit-learn's digits, equally many gradients for all.

    python -m experiments.main --config=configs/dana.py --workdir=runs/dana
"""

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Experiment, Published, Record, Simulation, along, figures, tasks
from experiments.configs import at_least, positive
from experiments.results.estimates import Measure
from experiments.results.measures import between, difference, ratio, tuned
from experiments.results.tables import Found

LIMITS = at_least(1, "workers", "width")
LIMITS |= positive("learning_rate")


def get_config() -> ConfigDict:
    """Four momenta and three numbers of workers."""
    return ConfigDict(
        dict(
            workers=(1, 8, 32),  # of memoryless times
            decay=(0.0, 0.5, 0.9, 0.97, 0.99, 0.997),  # beta; 0 is no momentum
            learning_rate=(0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.3, 1.0),
            width=16,  # hidden units
            batch_size=32,  # examples a gradient
            updates=1000,
            seeds=20,
            tuning_seeds=6,  # that choose step and decay, and are not reported
        )
    )


def one_slow(decay: jax.Array, workers: int) -> optax.GradientTransformation:
    """Adds beta m / (1 - beta) to g, and m forgets by beta^(1 / P) a gradient."""
    kept = jnp.power(decay, 1.0 / workers)
    average = optax.ema(kept, debias=False)

    def update(grads, state, params=None):
        means, state = average.update(grads, state, params)
        ahead = decay / (1.0 - decay)
        return jax.tree.map(lambda g, m: g + ahead * m, grads, means), state

    return optax.GradientTransformation(average.init, update)


def experiment(config: ConfigDict) -> Experiment:
    """A program for each momentum and number of workers."""

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

    each = dict(color="momentum", fixed=False)
    at = dict(only={"decay": (0.9,)}, name="at_0.9")
    best = dict(color="momentum", title="Which step size is best?")
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
        answer=answer,
        published=published(config),
        records=records(config),
        figures=[
            figures.over(
                "workers", **each, title="Which momentum bears many workers, tuned?"
            ),
            figures.over("workers", **each, **at, title="And if it is 0.9?"),
            figures.best_step("workers", "learning_rate", **best),
        ],
    )


def of(metric: str, momentum: str, workers: int, **decay: float) -> Measure:
    """A metric at the best step; at the best decay too, where none is given."""
    return tuned(metric, momentum=momentum, workers=workers, **decay)


def less(other: str, **decay: float) -> Measure:
    """Test error of DANA less another's, 32 workers."""
    return difference(*(of("test_error", m, 32, **decay) for m in ("DANA", other)))


def published(config: ConfigDict) -> list[Published]:
    """With a momentum of 0.9, as in the paper, and with the momentum tuned."""
    del config
    paper = dict(at_most=0.0, said="it outperforms existing methods in final accuracy")
    paper["source"] = "Hakimi, Barkai, Gabel, Schuster (2019), arXiv:1907.11612"
    paper["setting"] = "CIFAR and ImageNet, up to 64 asynchronous workers"
    return [
        Published(
            text="With 32 workers and momentum 0.9, DANA has a smaller test error than"
            " Nesterov's momentum on the server",
            measure=less("Nesterov", decay=0.9),
            **paper,
        ),
        Published(
            text="The same, with the momentum of each tuned, down to none",
            measure=less("Nesterov"),
            **paper,
        ),
    ]


def records(config: ConfigDict) -> list[Record]:
    """Losses over Nesterov's, and test errors with 32 workers."""
    del config
    one, eight = (
        ratio(*(of("train_loss", m, n, decay=0.9) for m in ("DANA", "Nesterov")))
        for n in (1, 8)
    )
    dana, nesterov = (of("test_error", m, 32, decay=0.9) for m in ("DANA", "Nesterov"))
    none = of("test_error", "heavy ball", 32, decay=0.0)
    return [
        Record("Loss of one worker at 0.9, DANA / Nesterov: the same", one, 1.0, 0.0),
        Record("Loss of 8 workers at 0.9, DANA / Nesterov", eight, 0.3262, 0.048),
        Record("Test error of 32 workers at 0.9, DANA", dana, 0.05958, 0.0041),
        Record("Test error of 32 workers, Nesterov", nesterov, 0.09688, 0.0043),
        Record("Test error of 32 workers, no momentum", none, 0.06258, 0.0028),
    ]


def answer(found: Found) -> str:
    """Test errors of 32 workers, at one momentum and at each one's own."""

    def by(other, **decay):
        return between(less(other, **decay), found, same=0.0, form="+.3f")

    return (
        "The test error of DANA with 32 asynchronous workers, less the error of another"
        f" momentum: at 0.9 Nesterov's {by('Nesterov', decay=0.9)}; with step and"
        f" momentum tuned for each, Nesterov's {by('Nesterov')}, one slow momentum in"
        f" one buffer {by('one slow')}."
    )
