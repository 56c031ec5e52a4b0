"""What does the staleness of a real cluster cost?

An MLP on scikit-learn's digits is trained along a log, a .csv with the columns

    update,time_s,worker,read_version

and a row for each gradient that was applied, or a .npz that `Trace.save` wrote. Plain
steps against three laws of staleness, each at its best step size, and against the same
updates with every gradient fresh, which is what staleness costs at best.

    python -m experiments.main --config=configs/real_trace.py \
        --config.trace=trace.csv --workdir=runs/real_trace
"""

import dataclasses

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Claim, Experiment, along, configs, figures, tasks
from experiments.results.measures import difference, tuned


def get_config() -> ConfigDict:
    """The whole log, or the first 10 000 updates of it."""
    return ConfigDict(
        dict(
            trace="trace.csv",  # or a .npz
            updates=10_000,  # at most
            learning_rate=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            power=0.5,  # of the polynomial law
            batch_size=32,  # examples a gradient
            seeds=3,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """Fresh gradients, and late ones under each law."""
    trace = dj.cluster.load_trace(config.trace)
    fresh = dataclasses.replace(trace, read_version=trace.update)
    laws = {
        "none": lambda tau: 1.0,
        "inverse": dj.modulation.inverse,
        "polynomial": dj.modulation.polynomial(config.power),
        "capped": dj.modulation.capped(trace.num_workers),
    }

    def weighted(law):
        return dj.scale_by_staleness(configs.one_of([*laws.values()], law))

    return Experiment(
        question="What does the staleness of a real cluster cost?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[
            (dict(gradients="fresh"), along(fresh, optax.sgd)),
            (dict(gradients="late"), along(trace, optax.sgd, each=weighted)),
        ],
        grid={
            "learning_rate": config.learning_rate,
            "law": {name: number for number, name in enumerate(laws)},
        },
        seeds=config.seeds,
        tuned="learning_rate",
        updates=config.updates,
        claims=[
            Claim(
                "Late gradients cost training loss",
                difference(
                    tuned("train_loss", gradients="late", law="none"),
                    tuned("train_loss", gradients="fresh"),
                ),
                at_least=0.0,
            )
        ],
        figures=[
            figures.bars("test_error"),
            figures.curves("train_loss", against="update"),
            figures.curves("train_loss", against="seconds"),
            figures.staleness(),
        ],
    )
