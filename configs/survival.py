"""How many asynchronous workers are fastest on a network, and how many kill it?

At one step size more workers bring more gradients a second, and later ones; the delay
equation of Yu, Chen and Poor (arXiv:2406.11159) says how many are fastest for a loss of
one curvature. Here the loss is not convex: a perceptron on scikit-learn's digits, plain
SGD that updates at each gradient, the step and the target kept, workers from 1 to 256
of regular and of memoryless times. `workers.py` asks the same of a quadratic.

    python -m experiments.main --config=configs/survival.py --workdir=runs/survival
"""

import jax
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Claim, Experiment, Simulation, along, figures, tasks
from experiments.results.measures import ratio, seconds_to


def get_config() -> ConfigDict:
    """Two laws of times, and workers far beyond the limit of the first."""
    return ConfigDict(
        dict(
            workers=(1, 2, 4, 8, 16, 32, 64, 128),
            learning_rate=0.1,
            shape=16,  # of the gamma law of the regular times, mean 1 s
            target=0.3,  # of the training loss, nats
            batch_size=32,  # examples a gradient
            updates=1500,  # of each arm
            seeds=5,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """An arm for each law and number of workers."""
    laws = {
        "regular": dj.cluster.gamma(1.0, config.shape),
        "memoryless": dj.cluster.exponential(1.0),
    }

    def arm(law, workers):
        cluster = dj.cluster.Cluster(workers, laws[law])
        simulated = Simulation(cluster, dj.cluster.protocols.k_async(1))
        return Arm(
            training=along(simulated, optax.sgd(config.learning_rate)),
            labels=dict(law=law, workers=workers),
            seconds=config.updates / workers,
        )

    task = tasks.digits_mlp(batch_size=config.batch_size)
    whole = tasks.digits_mlp(batch_size=0)
    (batch,) = jax.tree.map(lambda x: x[0], [whole.batches(0, 0, 1)])
    params = whole.init(jax.random.fold_in(jax.random.key(0), 0))
    sharpness = float(dj.stability.sharpness(whole.loss, params, batch))
    step = config.learning_rate * sharpness
    limit = dj.stability.optimal_workers(step, laws["regular"]).limit

    def until(law, workers):
        return seconds_to("train_loss", config.target, law=law, workers=workers)

    many = [count for count in config.workers if count > 2 * limit]

    def fastest(found):
        """The largest step of regular workers / the limit in theory."""
        times = {count: until("regular", count)(found) for count in config.workers}
        return min(times, key=times.get) / limit

    def worst(found):
        """The least loss at the end with more than twice as many as the limit."""
        losses = found.results[found.results.law.eq("regular")]
        return float(losses[losses.workers.isin(many)].train_loss.min())

    return Experiment(
        question="How many asynchronous workers kill the training of a network?",
        task=task,
        arms=[arm(law, workers) for law in laws for workers in config.workers],
        seeds=config.seeds,
        seconds=float(config.updates),
        evaluations=50,
        claims=[
            Claim(
                "Regular times: the fastest number of workers over the limit",
                fastest,
                at_least=0.25,
                at_most=1.0,
            ),
            Claim(
                "Regular times: seconds of one worker / seconds of four",
                ratio(until("regular", 1), until("regular", 4)),
                about=4.0,
                within=0.8,
            ),
            Claim(
                "Regular times: 16 workers, beyond the limit, over 8, seconds",
                ratio(until("regular", 16), until("regular", 8)),
                at_least=1.1,
            ),
            Claim(
                "Regular times: loss of more than twice the limit", worst, at_least=2
            ),
            Claim(
                "Memoryless times: seconds of 64 workers / seconds of 8",
                ratio(until("memoryless", 64), until("memoryless", 8)),
                at_most=0.5,
            ),
        ],
        figures=[
            figures.over(
                "workers",
                figures.TimeTo("train_loss", config.target),
                color="law",
                fixed=False,
                title="How many workers are fastest, and how many fail?",
            ),
            figures.curves("train_loss", against="seconds", panels="law"),
        ],
        notes=(
            "The largest curvature at the start is 1.53, and theory's limit for regular"
            " workers 11.6: eight are fastest, 46 s in place of 275 s for one, sixteen"
            " take 67 s, and from 32 on no run ever gets there, though the loss is not"
            " convex: their units die at the loss of a guess. Memoryless workers have"
            " no such limit, and 128 of them take 7 s."
        ),
    )
