"""Who still trains when a gradient may never end?

Every task hangs for good with a small probability (the infinite-Bernoulli times of
Maranjyan et al., arXiv:2410.04285). A method that waits for a gradient, or keeps one
worker busy with it, loses that worker; MindFlayer abandons what takes longer than it
allots. Logistic regression on breast cancer data, one example a gradient.

    python -m experiments.main --config=configs/hanging_workers.py \
        --workdir=runs/hanging_workers
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Claim, Experiment, Simulation, along, figures, tasks
from experiments.results.measures import difference, mean, ratio, tuned


def get_config() -> ConfigDict:
    """Three methods, without and with hanging tasks."""
    return ConfigDict(
        dict(
            workers=16,
            hang_probability=(0.0, 0.02, 0.1),  # of a task
            gradient_seconds=1.0,  # of a task that ends
            seconds=200.0,  # simulated
            batch=16,  # gradients in an update of Rennala
            allotted_seconds=1.5,  # to a gradient of MindFlayer
            learning_rate=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            l2=0.1,  # penalty (l2 / 2) |w|^2
            seeds=5,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """An arm for each method and probability."""
    protocols = dj.cluster.protocols
    compared = {
        "ASGD": protocols.k_async(1),
        "Rennala": protocols.rennala(config.batch),
        "MindFlayer": protocols.mindflayer(1, config.allotted_seconds),
    }

    def arm(name, chance):
        service = dj.cluster.infinite_bernoulli(config.gradient_seconds, chance)
        cluster = dj.cluster.Cluster(config.workers, service)
        simulated = Simulation(cluster, compared[name], may_hang=True)
        return dict(method=name, hang_probability=chance), along(simulated, optax.sgd)

    def gradients(name, chance):
        """Those of a worker before it hangs, for all workers."""
        return mean("examples", method=name, hang_probability=chance)

    def loss(name, chance):
        return tuned("train_loss", method=name, hang_probability=chance)

    rounds = config.seconds / config.allotted_seconds
    return Experiment(
        question="Who still trains when a gradient may never end?",
        task=tasks.breast_cancer(batch_size=1, l2=config.l2),
        arms=[
            arm(name, chance) for chance in config.hang_probability for name in compared
        ],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        seconds=config.seconds,
        claims=[
            Claim(
                "Gradients of MindFlayer / gradients of ASGD at 10 %, which all hang",
                ratio(gradients("MindFlayer", 0.1), gradients("ASGD", 0.1)),
                at_least=8.0,
            ),
            Claim(
                "Gradients that MindFlayer gets at 10 %",
                gradients("MindFlayer", 0.1),
                about=0.9 * config.workers * rounds,
                within=0.15 * config.workers * rounds,
            ),
            Claim(
                "MindFlayer's training loss at 10 % less ASGD's",
                difference(loss("MindFlayer", 0.1), loss("ASGD", 0.1)),
                at_most=-0.01,
            ),
        ],
        figures=[
            figures.over("hang_probability", "train_loss", color="method", fixed=False),
            figures.curves("train_loss", against="seconds", panels="hang_probability"),
            figures.gantt(),
        ],
    )
