"""Does momentum help asynchronous SGD if it takes gradients in order?

A heavy-ball momentum on the server decays with every gradient, however old the model is
at which a worker computed it. Ordered momentum (Shi et al., arXiv:2407.19234) decays
once for each bucket of P gradients, and gives a late gradient the weight that it would
have if gradients arrived in the order of the reads. DANA has a momentum for each
worker. A slow momentum, a share of which is mixed with the gradient, knows neither
order nor worker. Asynchronous SGD trains on scikit-learn's digits with 8 and with 32
workers, whose times are Pareto of shape 1.5, so that some gradients are very late. All
rules have the same number of gradients; step and momentum, which may be 0, are searched
for each.

    python -m experiments.main --config=configs/ordered_momentum.py --workdir=runs/order
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
    percent,
    tasks,
)
from experiments.comparison.rules import SHARE, slow_sgd
from experiments.configs import above, at_least, below_one, positive

LIMITS = at_least(1, "workers", "width")
LIMITS |= positive("tolerance") | below_one("momentum")
LIMITS |= above(1, "tail")  # a mean time of 1 s

NONE, SEARCHED, GIVEN = "none", "searched", "given"
_OTHERS = "heavy ball", "DANA", "one slow"


def get_config() -> ConfigDict:
    """The config: three momenta and two numbers of workers."""
    return ConfigDict(
        dict(
            workers=(8, 32),
            tail=1.5,  # shape of the Pareto law of a gradient's time, mean 1 s
            momentum=0.9,  # beta of all rules, in one of the comparisons
            width=16,  # hidden units
            batch_size=32,  # examples per gradient
            updates=600,
            seeds=8,
            tolerance=0.05,  # tolerance of the search, as a share of the loss
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each momentum and number of workers."""
    pareto = dj.cluster.pareto(1.0 - 1.0 / config.tail, config.tail)
    decays = {SEARCHED: Range(0.01, 1.0, off=1.0), GIVEN: (1.0 - config.momentum,)}

    def arms(workers):
        rules = {
            "heavy ball": optax.trace,
            "DANA": functools.partial(dj.dana, workers=workers),
            "ordered": functools.partial(dj.ordered_momentum, workers=workers),
        }
        cluster = dj.cluster.Cluster(workers, pareto)
        simulated = Simulation(cluster, dj.cluster.protocols.k_async(1))

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
            grid={"decay": Range(0.001, 1.0, off=1.0), "share": SHARE},
            contains=plain,
        )

    def ordered_beside(other, said="", **where):
        where["momentum"] = "ordered", other
        text = f"training loss of ordered momentum{said}"
        beside = dict(against={"momentum": other}, where=where, name=text)
        return Effect(metric="train_loss", size=percent(10), **beside)

    given = f"{config.momentum:g}"
    by = dict(color="momentum", fixed=False)
    best = dict(only={"beta": (None, SEARCHED)}, title="Which momentum, tuned?")
    at = dict(
        only={"beta": (None, GIVEN)}, name=f"at_{given}", title=f"And at {given}?"
    )
    return Experiment(
        question="Does momentum help asynchronous SGD if it takes gradients in order?",
        task=tasks.digits_mlp(width=config.width, batch_size=config.batch_size),
        arms=[arm for workers in config.workers for arm in arms(workers)],
        grid={"learning_rate": Range(0.003, 1.0)},
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        updates=config.updates,
        evaluations=10,
        answer=[
            *(ordered_beside(each, beta=SEARCHED) for each in _OTHERS),
            ordered_beside("heavy ball", f" at {given}", beta=GIVEN),
        ],
        figures=[
            figures.over("workers", "train_loss", **by, **best),
            figures.over("workers", "train_loss", **by, **at),
            figures.best_step(
                "workers", "learning_rate", color="momentum", panels="beta"
            ),
        ],
    )
