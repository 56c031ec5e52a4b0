"""How do accuracy and run time trade off when 120 examples are split?

An update of 120 examples is split among P workers. Accuracy is compared with simulated
run time for hardsync, 1-softsync and P-softsync (Zhang et al., arXiv:1511.05950), with
an MLP on digits. A gradient of m examples takes 0.02 + 0.01 m seconds, an assumed cost.
Rates are divided by staleness. The server's step and momentum are searched for each.

    python -m experiments.main --config=configs/tradeoff.py --workdir=runs/tradeoff
"""

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
    points,
    tasks,
)
from experiments.configs import at_least, positive

SMALL = {"examples": 8_000}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(2, "workers") | at_least(1, "examples")
LIMITS |= at_least(0, "overhead_seconds", "example_seconds")
LIMITS |= positive("tolerance")


def get_config() -> ConfigDict:
    """The config: one to thirty workers."""
    return ConfigDict(
        dict(
            workers=(4, 15, 30),  # beside one worker
            split_examples=120,  # per update of hardsync, split among the workers
            overhead_seconds=0.02,  # of a gradient
            example_seconds=0.01,  # of each example in it
            service_spread=0.05,  # of a gradient's time: standard deviation over mean
            examples=27_000,  # twenty epochs
            seeds=20,
            tolerance=0.1,  # tolerance of the search, as a share of the loss
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: three protocols for each number of workers."""
    protocols = dj.cluster.protocols
    inverse = dj.scale_by_staleness(dj.modulation.inverse)

    def server(learning_rate, decay):  # decay = 1 - momentum
        return optax.sgd(learning_rate, 1.0 - decay)

    def arm(name, protocol, workers):
        batch = config.split_examples // workers
        seconds = config.overhead_seconds + config.example_seconds * batch
        service = dj.cluster.lognormal(seconds, config.service_spread)
        simulated = Simulation(dj.cluster.Cluster(workers, service), protocol)
        return Arm(
            training=along(simulated, server, each=inverse),
            labels=dict(protocol=name, workers=workers),
            task=tasks.digits_mlp(batch_size=batch),
        )

    arms = [arm("hardsync", protocols.hardsync(), 1)]
    for workers in config.workers:
        arms.append(arm("hardsync", protocols.hardsync(), workers))
        arms.append(arm("1-softsync", protocols.n_softsync(1), workers))
        arms.append(arm("P-softsync", protocols.n_softsync(workers), workers))
    alone = {"protocol": "hardsync", "workers": 1}
    return Experiment(
        question="How do accuracy and run time trade off?",
        task=tasks.digits_mlp(),
        arms=arms,
        grid={
            "learning_rate": Range(0.03, 2.0),
            "decay": Range(0.05, 1.0, off=1.0),
        },
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        examples=config.examples,
        answer=[
            Effect(metric="seconds", against=alone, size=percent(10)),
            Effect(metric="test_error", against=alone, size=points(1)),
        ],
        figures=[
            figures.curves(
                "test_error",
                against="seconds",
                only={"workers": (max(config.workers),)},
            ),
            figures.over("workers", "test_error", color="protocol", fixed=False),
        ],
    )
