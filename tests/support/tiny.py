"""A config of a quadratic: a run of it takes a second."""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Experiment,
    Range,
    Search,
    Simulation,
    along,
    figures,
    on_devices,
    tasks,
)


def get_config(question: str = "delay") -> ConfigDict:
    """Under a delay, along a cluster, on devices, or searched on devices."""
    return ConfigDict(
        dict(
            question=question,
            noise=0.5,
            batch_size=8,  # examples, on devices
            learning_rate=(0.05, 0.1),
            delay=(0, 3),
            updates=400,
            evaluate_every=10,  # updates
            seeds=2,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """Four cells, or two under each protocol."""
    common = dict(
        question="Does a tiny run leave what a large one does?",
        task=tasks.quadratic((0.3, 1.0), noise=config.noise),
        seeds=config.seeds,
        figures=[figures.curves("train_loss")],
    )
    if config.question == "cluster":
        return Experiment(**common, **_along(config))
    grid = {"learning_rate": config.learning_rate, "delay": config.delay}
    updates = dict(updates=config.updates, evaluate_every=config.evaluate_every)
    if config.question in ("devices", "search"):
        common["task"] = tasks.digits_mlp(batch_size=config.batch_size, width=4)
        training = on_devices(_late_mean, workers=4)
        if config.question == "search":
            grid["learning_rate"] = Range(0.01, 0.1)
            updates["search"] = Search(seeds=3, repeats=2, tolerance=0.5)
    else:
        training = _late
    return Experiment(**common, **updates, training=training, grid=grid)


def _late(learning_rate, delay):
    return dj.delayed(optax.sgd(learning_rate), delay, max_delay=3)


def _late_mean(learning_rate, delay):
    mean = dj.exchange.mean(optax.adam(learning_rate))
    return dj.delayed(mean, delay, max_delay=4)


def _along(config: ConfigDict) -> dict:
    cluster = dj.cluster.Cluster(4, dj.cluster.exponential(1.0))
    protocols = {
        "softsync": dj.cluster.protocols.n_softsync(2),
        "hardsync": dj.cluster.protocols.hardsync(),
    }
    arms = [
        ({"protocol": name}, along(Simulation(cluster, protocol), optax.sgd))
        for name, protocol in protocols.items()
    ]
    grid = {"learning_rate": config.learning_rate}
    return dict(arms=arms, grid=grid, seconds=200.0, evaluations=40)
