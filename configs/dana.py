"""Does a momentum for each worker help when many workers are asynchronous?

One momentum on the server collects gradients of all workers, and each gradient was
computed before the momentum of the others moved the model. DANA (Hakimi et al.,
arXiv:1907.11612) keeps a Nesterov momentum for each worker, and a worker computes its
gradient at the point to which all these momenta will move the model. It is compared
with three momenta on the server: heavy ball, Nesterov's, and a slow one, a share of
which is mixed with the gradient (Ma and Yarats, arXiv:1810.06801). All train on
scikit-learn's digits by asynchronous SGD with the same number of gradients. The step of
each is searched, with the momentum, which may be 0, and at a momentum of 0.9. The decay
and the share of the slow momentum, which knows no worker, are searched.

    python -m experiments.main --config=configs/dana.py --workdir=runs/dana
"""

import functools

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Arm,
    Effect,
    Experiment,
    Range,
    Search,
    Simulation,
    along,
    figures,
    points,
    tasks,
)
from experiments.comparison.rules import SHARE, slow_sgd
from experiments.configs import at_least, below_one, positive

LIMITS = at_least(1, "workers", "width")
LIMITS |= positive("tolerance") | below_one("momentum")

NONE, SEARCHED, GIVEN = "none", "searched", "given"


def get_config() -> ConfigDict:
    """The config: four momenta and two numbers of workers."""
    return ConfigDict(
        dict(
            workers=(8, 32),  # with memoryless times
            momentum=0.9,  # beta of all rules, in one of the comparisons
            width=16,  # hidden units
            batch_size=32,  # examples per gradient
            updates=1000,
            seeds=20,
            tolerance=0.1,  # tolerance of the search, as a share of the loss
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each momentum and number of workers."""
    # 1 - beta
    decays = {SEARCHED: Range(0.003, 1.0, off=1.0), GIVEN: (1.0 - config.momentum,)}

    def arms(workers):
        rules = {
            "heavy ball": optax.trace,
            "Nesterov": functools.partial(optax.trace, nesterov=True),
            "DANA": functools.partial(dj.dana, workers=workers),
        }
        memoryless = dj.cluster.Cluster(workers, dj.cluster.exponential(1.0))
        simulated = Simulation(memoryless, dj.cluster.protocols.k_async(1))
        plain = {"momentum": NONE, "workers": workers}
        yield Arm(training=along(simulated, optax.sgd), labels=plain)
        for name, rule in rules.items():

            def server(learning_rate, decay, rule=rule):
                return optax.chain(rule(1.0 - decay), optax.scale(-learning_rate))

            for beta, decay in decays.items():
                yield Arm(
                    training=along(simulated, server),
                    labels={"momentum": name, "workers": workers, "beta": beta},
                    grid={"decay": decay},
                    contains=plain if beta == SEARCHED else None,
                )

        yield Arm(
            training=along(simulated, slow_sgd),
            labels={"momentum": "one slow", "workers": workers, "beta": SEARCHED},
            grid={"decay": decays[SEARCHED], "share": SHARE},
            contains=plain,
        )

    def dana_beside(other, said="", **where):
        return Effect(
            metric="test_error",
            against={"momentum": other},
            size=points(1),
            where={"momentum": ("DANA", other), **where},
            name=f"test error of DANA{said}",
        )

    each = dict(color="momentum", fixed=False)
    given = f"{config.momentum:g}"
    best = dict(only={"beta": (None, SEARCHED)}, title="Which, tuned?")
    at = dict(only={"beta": (None, GIVEN)}, name=f"at_{given}")
    return Experiment(
        question="Does a momentum for each worker help when many are asynchronous?",
        task=tasks.digits_mlp(width=config.width, batch_size=config.batch_size),
        arms=[arm for workers in config.workers for arm in arms(workers)],
        grid={"learning_rate": Range(0.003, 1.0)},
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        updates=config.updates,
        evaluations=5,
        answer=[
            dana_beside("Nesterov", f" at a momentum of {given}", beta=GIVEN),
            dana_beside("Nesterov", beta=SEARCHED),
            dana_beside("one slow", beta=SEARCHED),
        ],
        figures=[
            figures.over("workers", **each, **best),
            figures.over("workers", **each, **at, title=f"And if it is {given}?"),
            figures.best_step(
                "workers", "learning_rate", color="momentum", panels="beta"
            ),
        ],
    )
