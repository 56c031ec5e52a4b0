"""Does a momentum for each worker help when many workers are asynchronous?

One momentum on the server takes in gradients of all workers, and each was computed
before the momentum of the others moved the model. DANA (Hakimi et al.,
arXiv:1907.11612) keeps a Nesterov momentum for each worker, and a worker takes its
gradient where all of these momenta will have moved the model. It is compared with
heavy-ball and Nesterov momentum on the server, and with none. Asynchronous SGD on
scikit-learn's digits, with the same number of gradients for any number of workers. The
steps tried are the same for all, and the best is chosen on the seeds that are reported.

    python -m experiments.main --config=configs/dana.py --workdir=runs/dana
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Claim, Experiment, Simulation, along, figures, tasks
from experiments.results.measures import ratio, tuned


def get_config() -> ConfigDict:
    """Four optimizers and five numbers of workers."""
    return ConfigDict(
        dict(
            workers=(1, 4, 8, 16, 32),  # of memoryless times
            decay=0.9,  # of each momentum
            learning_rate=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
            width=16,  # hidden units
            batch_size=32,  # examples a gradient
            updates=1000,
            seeds=5,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """A program for each optimizer and number of workers."""

    def optimizers(workers):
        def dana(learning_rate):
            rule = dj.dana(config.decay, workers=workers)
            return optax.chain(rule, optax.scale_by_learning_rate(learning_rate))

        return {
            "none": optax.sgd,
            "heavy ball": lambda learning_rate: optax.sgd(learning_rate, config.decay),
            "Nesterov": lambda learning_rate: optax.sgd(
                learning_rate, config.decay, nesterov=True
            ),
            "DANA": dana,
        }

    def arms(workers):
        cluster = dj.cluster.Cluster(workers, dj.cluster.exponential(1.0))
        simulated = Simulation(cluster, dj.cluster.protocols.k_async(1))
        return [
            (dict(momentum=name, workers=workers), along(simulated, make))
            for name, make in optimizers(workers).items()
        ]

    def of(metric, momentum, workers):
        return tuned(metric, momentum=momentum, workers=workers)

    def over_nesterov(metric, workers):
        return ratio(*(of(metric, name, workers) for name in ("DANA", "Nesterov")))

    return Experiment(
        question="Does a momentum for each worker help when many are asynchronous?",
        task=tasks.digits_mlp(width=config.width, batch_size=config.batch_size),
        arms=[arm for workers in config.workers for arm in arms(workers)],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        updates=config.updates,
        evaluations=5,
        claims=[
            Claim(
                "Training loss of one worker, DANA / Nesterov: they are the same",
                over_nesterov("train_loss", 1),
                about=1.0,
                within=0.001,
            ),
            Claim("The same, 8 workers", over_nesterov("train_loss", 8), at_most=0.3),
            Claim("The same, 16 workers", over_nesterov("train_loss", 16), at_most=0.6),
            Claim(
                "Best step with 8 workers, DANA / Nesterov",
                over_nesterov("learning_rate", 8),
                at_least=3.0,
            ),
            Claim(
                "Test error with 32 workers, DANA",
                of("test_error", "DANA", 32),
                about=0.052,
                within=0.015,
            ),
            Claim(
                "The same without momentum",
                of("test_error", "none", 32),
                about=0.059,
                within=0.015,
            ),
            Claim(
                "The same with Nesterov's momentum",
                of("test_error", "Nesterov", 32),
                at_least=0.08,
            ),
        ],
        figures=[
            figures.over(
                "workers",
                color="momentum",
                fixed=False,
                title="Which momentum bears many workers?",
            ),
            figures.best_step(
                "workers", color="momentum", title="Which step size is best?"
            ),
        ],
        notes=(
            "With one worker DANA is Nesterov's momentum. With eight it still bears a"
            " step of 0.1, Nesterov's and heavy-ball momentum only 0.01, and its"
            " training loss is a ninth of theirs, 0.012 against 0.11. With 32 it bears"
            " 0.03 and has the smallest test error, 0.052; no momentum has 0.059,"
            " heavy-ball 0.10 and Nesterov's 0.18. The price: at a step of 0.003 and"
            " with 32 workers DANA is slower than the momenta of the server, since each"
            " of its own must grow first."
        ),
    )
