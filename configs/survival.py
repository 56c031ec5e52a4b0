"""How many asynchronous workers are fastest on a network, and how many kill it?

At one step size more workers bring more gradients a second, and later ones; the delay
equation of Yu, Chen and Poor (arXiv:2406.11159) says how many are fastest for one
curvature, as in `workers.py`. Here it is a perceptron on scikit-learn's digits, plain
SGD that updates at each gradient, workers of regular and of memoryless times, of heavy
tails (Pareto stragglers, whose times have no variance), and of a real job's recorded
times. Its replicas take the same drawn steps. Fewer than 32 workers are the first ones;
more are the same ones again.

    python -m experiments.main --config=configs/survival.py --workdir=runs/survival
"""

import jax
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Experiment, Published, Record, Simulation, along, figures
from experiments.configs import at_least, positive
from experiments.results import analysis
from experiments.results.estimates import Measure, estimate
from experiments.results.measures import ratio, seconds_to
from experiments.results.tables import Found
from experiments.tasks import digits_mlp
from experiments.training.recorded_job import recorded_job

LAWS = ("regular", "memoryless", "heavy tails", "recorded")


LIMITS = at_least(1, "workers")
LIMITS |= positive("learning_rate", "target")


def get_config() -> ConfigDict:
    """Four laws of times, and workers far beyond the limit of the first."""
    return ConfigDict(
        dict(
            workers=(1, 2, 4, 8, 16, 32, 64, 128),
            learning_rate=0.1,
            shape=16,  # of the gamma law of the regular times, mean 1 s
            tail=1.5,  # shape of the Pareto law, mean 1 s; at most 2: no variance
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
        "heavy tails": dj.cluster.pareto(1.0 - 1.0 / config.tail, config.tail),
    }

    def service(law, workers):
        if law == "recorded":
            return recorded_job(workers).service("steps")
        return laws[law]

    def arm(law, workers):
        cluster = dj.cluster.Cluster(workers, service(law, workers))
        simulated = Simulation(cluster, dj.cluster.protocols.k_async(1))
        return Arm(
            training=along(simulated, optax.sgd(config.learning_rate)),
            labels=dict(law=law, workers=workers),
            seconds=config.updates / workers,
        )

    task = digits_mlp(batch_size=config.batch_size)
    whole = digits_mlp(batch_size=0)
    (batch,) = jax.tree.map(lambda x: x[0], [whole.batches(0, 0, 1)])
    params = whole.init(jax.random.fold_in(jax.random.key(0), 0))
    sharpness = float(dj.stability.sharpness(whole.loss, params, batch))
    step = config.learning_rate * sharpness
    limit = dj.stability.optimal_workers(step, laws["regular"]).limit

    time = figures.TimeTo("train_loss", config.target)
    return Experiment(
        question="How many asynchronous workers kill the training of a network?",
        task=task,
        arms=[arm(law, workers) for law in LAWS for workers in config.workers],
        seeds=config.seeds,
        seconds=float(config.updates),
        evaluations=50,
        answer=lambda found: answer(found, config, limit),
        published=published(config, limit),
        records=records(config, limit),
        figures=[
            figures.over(
                "workers", time, color="law", fixed=False, title="How many workers?"
            ),
            figures.curves("train_loss", against="seconds", panels="law"),
        ],
    )


def until(config: ConfigDict, law: str, workers: int) -> Measure:
    """Simulated seconds until the target; inf where some seed never gets there."""
    return seconds_to("train_loss", config.target, law=law, workers=workers)


def times(found: Found, config: ConfigDict, law: str) -> dict[int, float]:
    """These seconds of each number of workers."""
    return {count: until(config, law, count)(found) for count in config.workers}


def published(config: ConfigDict, limit: float) -> list[Published]:
    """The paper's findings, on regular workers and a network."""

    def worst(found):
        """The least loss at the end with more than twice as many as the limit."""
        many = tuple(count for count in config.workers if count > 2 * limit)
        those = analysis.where(found.results, law="regular", workers=many)
        return float(those["train_loss"].min())

    stated = dict(
        source="Yu, Chen, Poor (2024), arXiv:2406.11159",
        setting="synthetic models and MNIST, losses that are not convex included",
        bound_is_ours=True,
    )
    return [
        Published(
            text="More workers do not always help: 16 regular ones are slower than 8",
            said="more activated workers do not always help",
            measure=ratio(until(config, "regular", 16), until(config, "regular", 8)),
            at_least=1.0,
            **stated,
        ),
        Published(
            text="A large staleness diverges: no run of more than twice the limit of"
            " regular workers gets below 2 nats",
            said="a large staleness diverges",
            measure=worst,
            at_least=2.0,
            **stated,
        ),
    ]


def records(config: ConfigDict, limit: float) -> list[Record]:
    """Speedups of each law, and where the fastest number is."""

    def over_limit(found):
        seconds = times(found, config, "regular")
        return min(seconds, key=seconds.get) / limit

    def speedup(law, few, many):
        text = f"Seconds of {few} over {many} workers, {law}"
        return text, ratio(until(config, law, few), until(config, law, many))

    return [
        Record("The fastest number over the limit, regular", over_limit, 0.6883, 0.0),
        Record(*speedup("regular", 1, 4), 3.872, 0.031),
        Record(*speedup("regular", 1, 8), 5.952, 0.23),
        Record(*speedup("memoryless", 8, 64), 4.293, 0.32),
        Record(*speedup("heavy tails", 1, 8), 6.59, 0.77),
        Record(*speedup("heavy tails", 8, 16), 1.609, 0.057),
        Record(*speedup("recorded", 1, 8), 5.511, 0.21),
    ]


def answer(found: Found, config: ConfigDict, limit: float) -> str:
    """The fastest number of each law, and from which one on the target is missed."""
    parts = []
    for law in LAWS:
        seconds = times(found, config, law)
        best = min(seconds, key=seconds.get)
        gain = ratio(until(config, law, 1), until(config, law, best))
        low, high = estimate(gain, found).interval()
        missed = [count for count, own in seconds.items() if own == float("inf")]
        lost = f"from {missed[0]} on some runs fail" if missed else "no run fails"
        parts.append(
            f"({law}) {best} workers are fastest, {low:.3g} to {high:.3g} times as fast"
            f" as one, and {lost}"
        )
    return (
        f"At a step of {config.learning_rate:g} and for a training loss of"
        f" {config.target:g}: {'; '.join(parts)}. Theory of the curvature at the start"
        f" says that regular workers diverge from {limit:.3g} on."
    )
