"""How do accuracy and run time trade off when 120 examples are split?

An update of 120 examples is split among P workers. Accuracy is compared with simulated
run time for hardsync, 1-softsync and P-softsync (Zhang et al., arXiv:1511.05950), with
an MLP on digits. A gradient of m examples takes 0.02 + 0.01 m seconds, an assumed cost.
Rates are divided by staleness. The server's step and momentum are tuned for each.

    python -m experiments.main --config=configs/tradeoff.py --workdir=runs/tradeoff
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Arm,
    Effect,
    Experiment,
    Simulation,
    along,
    figures,
    percent,
    points,
    tasks,
)
from experiments.configs import at_least, below_one, positive

LIMITS = at_least(1, "workers", "examples")
LIMITS |= at_least(0, "overhead_seconds", "example_seconds")
LIMITS |= positive("learning_rate")
LIMITS |= below_one("momentum")


def get_config() -> ConfigDict:
    """The config: one to thirty workers."""
    return ConfigDict(
        dict(
            workers=(4, 15, 30),  # beside one worker
            split_examples=120,  # per update of hardsync, split among the workers
            overhead_seconds=0.02,  # of a gradient
            example_seconds=0.01,  # of each example in it
            service_spread=0.05,  # of a gradient's time: standard deviation over mean
            learning_rate=(0.03, 0.1, 0.2, 0.5, 1.0, 2.0),
            momentum=(0.0, 0.9),
            examples=27_000,  # twenty epochs
            seeds=20,
            tuning_seeds=8,  # seeds that choose step and momentum; not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: three protocols for each number of workers."""
    protocols = dj.cluster.protocols
    inverse = dj.scale_by_staleness(dj.modulation.inverse)

    def arm(name, protocol, workers):
        batch = config.split_examples // workers
        seconds = config.overhead_seconds + config.example_seconds * batch
        service = dj.cluster.lognormal(seconds, config.service_spread)
        simulated = Simulation(dj.cluster.Cluster(workers, service), protocol)
        return Arm(
            training=along(simulated, optax.sgd, each=inverse),
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
        grid={"learning_rate": config.learning_rate, "momentum": config.momentum},
        seeds=config.seeds,
        tuned=("learning_rate", "momentum"),
        tuning_seeds=config.tuning_seeds,
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
