"""Do long sequences make stragglers that waiting for nobody avoids?

A gradient takes as long as its batch is long. Lengths are lognormal, and a worker with
a long one makes all others wait, as in a Transformer (WAGMA-SGD, arXiv:2005.00124).
Four methods have the same simulated time; the model is an MLP on scikit-learn's digits.

    python -m experiments.main --config=configs/sequence_lengths.py \
        --workdir=runs/sequence_lengths
"""

import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Experiment, Published, Record, figures, replicas, tasks
from experiments.configs import at_least, positive
from experiments.results.estimates import Measure
from experiments.results.measures import between, difference, mean, ratio, tuned
from experiments.results.tables import Found
from experiments.training import methods

LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "token_seconds")
LIMITS |= positive("seconds", "learning_rate")


def get_config() -> ConfigDict:
    """Four methods under three spreads of lengths."""
    return ConfigDict(
        dict(
            workers=16,
            spread=(0.0, 0.5, 1.0),  # of a length's logarithm, standard deviation
            token_seconds=0.004,  # of a gradient, for each token
            mean_tokens=100,  # of a sequence
            seconds=240.0,  # simulated
            learning_rate=(0.03, 0.1, 0.3, 1.0, 3.0),
            batch_size=4,  # examples a gradient
            seeds=20,
            tuning_seeds=6,  # that choose the step size, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """An arm for each method and spread."""
    compared = {
        WAITS: methods.allreduce_sgd(),
        "local SGD": methods.local_sgd(period=8),
        "eager-SGD": methods.eager_sgd(),
        "WAGMA-SGD": methods.wagma(period=11),
    }
    many = 4096  # lengths of each worker, used again after that

    def seconds(spread):
        draw = np.random.default_rng(0).lognormal
        drawn = draw(-0.5 * spread**2, spread, (config.workers, many))
        return config.token_seconds * (config.mean_tokens * drawn)

    def cluster(spread):
        known = seconds(spread)
        service = dj.cluster.by_batch(lambda worker, task: known[worker, task % many])
        return dj.cluster.Cluster(config.workers, service)

    def longest(method, spread):  # the mean time of a step that waits for it
        return seconds(spread).max(axis=0).mean() if method == WAITS else None

    shown = dict(color="method", fixed=False)
    shown["x_label"] = "spread of the logarithm of a length"
    return Experiment(
        question="Do long sequences make stragglers that waiting for nobody avoids?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[
            (dict(method=name, spread=own), replicas(made, cluster(own), optax.sgd))
            for own in config.spread
            for name, made in compared.items()
        ],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        seconds=config.seconds,
        answer=lambda found: answer(found, max(config.spread)),
        published=published(config),
        records=records(config),
        figures=[
            figures.over("spread", title="Who is the most accurate?", **shown),
            figures.over("spread", "updates", title="How many updates fit?", **shown),
            figures.update_times(theory=longest),
        ],
    )


WAITS = "Allreduce-SGD"


def steps(method: str, spread: float) -> Measure:
    """Steps in the simulated time."""
    return mean("updates", method=method, spread=spread)


def error(method: str, spread: float) -> Measure:
    """Test error after that time, at the best step."""
    return tuned("test_error", method=method, spread=spread)


def saved(method: str, spread: float) -> Measure:
    """Test error of Allreduce-SGD less another method's test error."""
    return difference(error(WAITS, spread), error(method, spread))


def loss(method: str, spread: float) -> Measure:
    """Training loss over Allreduce-SGD's, both at a step of 0.1."""
    own = dict(spread=spread, learning_rate=0.1)
    return ratio(*(mean("train_loss", method=m, **own) for m in (method, WAITS)))


def published(config: ConfigDict) -> list[Published]:
    """What the authors of WAGMA-SGD and of eager-SGD report."""
    return [
        Published(
            text="Where sentences vary in length WAGMA-SGD beats Allreduce-SGD",
            source="Li et al. (2021), arXiv:2005.00124, abstract",
            said="the highest score in the shortest training time",
            setting="a Transformer that translates",
            measure=saved("WAGMA-SGD", max(config.spread)),
            at_least=0.0,
            bound_is_ours=True,
        ),
        Published(
            text="Where videos vary in length eager-SGD loses no accuracy",
            source="Li et al. (2020), arXiv:1908.04207",
            said="1.27 times faster, without a loss of accuracy",
            setting="an LSTM on videos (UCF101)",
            measure=saved("eager-SGD", max(config.spread)),
            at_least=-0.01,
            bound_is_ours=True,
        ),
    ]


def records(config: ConfigDict) -> list[Record]:
    """Steps, an error, and losses at a step of 0.1, where lengths vary most."""
    most, own = max(config.spread), "WAGMA-SGD"
    faster = ratio(steps(own, most), steps(WAITS, most))
    return [
        Record("Steps of Allreduce-SGD", steps(WAITS, most), 149, 0),
        Record("Steps, WAGMA-SGD / Allreduce-SGD", faster, 2.356, 0),
        Record("Test error of WAGMA-SGD", error(own, most), 0.05334, 0.0031),
        Record(
            "Loss at 0.1, local / Allreduce", loss("local SGD", most), 0.4408, 0.0042
        ),
        Record("Loss at 0.1, WAGMA / Allreduce", loss(own, most), 1.513, 0.01),
    ]


def answer(found: Found, spread: float) -> str:
    """How many steps are gained, and what they are worth."""
    said = []
    for own in [own for own in found.results["method"].unique() if own != WAITS]:
        gain = between(saved(own, spread), found, same=0.0, form="+.3f")
        said.append(f"{own} takes {steps(own, spread)(found):.0f} and saves {gain}")
    return (
        f"Where the logarithm of a length has a spread of {spread:g}, Allreduce-SGD"
        f" takes {steps(WAITS, spread)(found):.0f} steps and has a test error of"
        f" {error(WAITS, spread)(found):.3f}; in the same time, each at its best step,"
        f" {', '.join(said)}."
    )
