"""What do accuracy and run time pay for each other when 120 examples are split?

An update of 120 examples split among P workers: accuracy against simulated run time for
hardsync, 1-softsync and P-softsync (Zhang et al., arXiv:1511.05950), an MLP on
scikit-learn's digits. A gradient of m examples takes 0.02 + 0.01 m seconds (an assumed
cost: some overhead, and the rest in proportion). Rates are divided by staleness.

    python -m experiments.main --config=configs/tradeoff.py --workdir=runs/tradeoff
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Claim, Experiment, Simulation, along, figures, tasks
from experiments.measures import mean, ratio, tuned


def get_config() -> ConfigDict:
    """One to thirty workers."""
    return ConfigDict(
        dict(
            workers=(30, 15, 8, 4),  # beside one
            split_examples=120,  # of an update of hardsync, among the workers
            overhead_seconds=0.02,  # of a gradient
            example_seconds=0.01,  # of each example in it
            service_spread=0.05,  # of a gradient's time, a share of it
            learning_rate=(0.01, 0.03, 0.1, 0.3, 1.0),
            momentum=0.9,
            examples=27_000,  # twenty times all of them
            seeds=3,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """Three protocols for each number of workers."""
    protocols = dj.cluster.protocols
    inverse = dj.scale_by_staleness(dj.modulation.inverse)

    def server(learning_rate):
        return optax.sgd(learning_rate, config.momentum)

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
        arms += [
            arm("hardsync", protocols.hardsync(), workers),
            arm("1-softsync", protocols.n_softsync(1), workers),
            arm("P-softsync", protocols.n_softsync(workers), workers),
        ]

    def accuracy(protocol, workers):
        return tuned("test_accuracy", protocol=protocol, workers=workers)

    def seconds(protocol, workers):
        return mean("seconds", protocol=protocol, workers=workers)

    return Experiment(
        question="What do accuracy and run time pay for each other?",
        task=tasks.digits_mlp(),
        arms=arms,
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        examples=config.examples,
        claims=[
            Claim(
                "Test accuracy of 30 in hardsync",
                accuracy("hardsync", 30),
                about=0.969,
                within=0.012,
            ),
            Claim(
                "Test accuracy of one worker",
                accuracy("hardsync", 1),
                about=0.969,
                within=0.012,
            ),
            Claim(
                "Test accuracy of 30-softsync",
                accuracy("P-softsync", 30),
                about=0.957,
                within=0.015,
            ),
            Claim(
                "Seconds of 30 in hardsync",
                seconds("hardsync", 30),
                about=14.6,
                within=0.3,
            ),
            Claim(
                "One worker over 30 in hardsync, seconds",
                ratio(seconds("hardsync", 1), seconds("hardsync", 30)),
                about=18.4,
                within=0.6,
            ),
            Claim(
                "30-softsync over hardsync, seconds",
                ratio(seconds("P-softsync", 30), seconds("hardsync", 30)),
                about=0.925,
                within=0.02,
            ),
        ],
        figures=[
            figures.over("workers", "test_error", color="protocol", fixed=False),
            figures.over("workers", "seconds", color="protocol", fixed=False),
            figures.curves("test_error", against="seconds", panels="workers"),
        ],
        notes=(
            "Hardsync ends at the same accuracy however the 120 examples are split, and"
            " thirty workers are 18 times faster than one; 30-softsync saves another"
            " 7 % and loses a point of accuracy."
        ),
    )
