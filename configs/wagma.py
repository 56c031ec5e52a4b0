"""How much time does it save to wait for no slow worker, and what does it cost?

The imbalance of Li et al. (WAGMA-SGD, arXiv:2005.00124): at each step two of P workers
take 0.32 s longer than the 0.4 s of the others. WAGMA-SGD averages in groups of sqrt(P)
and waits for nobody, with a global average every 11 steps, beside its six baselines, on
16, 64 and 256 workers with a batch of 2 each: an MLP on scikit-learn's digits. All have
80 simulated seconds, and their own best step.

    python -m experiments.main --config=configs/wagma.py --workdir=runs/wagma
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Experiment, Published, Record, figures, replicas, tasks
from experiments.configs import at_least, positive
from experiments.results.estimates import Measure
from experiments.results.measures import between, difference, mean, tuned
from experiments.results.tables import Found
from experiments.training import methods

LIMITS = at_least(1, "workers", "period")
LIMITS |= at_least(0, "step_seconds", "sleep_seconds")
LIMITS |= positive("seconds", "learning_rate")


def get_config() -> ConfigDict:
    """Seven methods on three numbers of workers."""
    return ConfigDict(
        dict(
            workers=(16, 64, 256),
            step_seconds=0.4,  # of a gradient
            sleep_seconds=0.32,  # more, of two workers at each step
            period=11,  # steps between two global averages of WAGMA-SGD
            seconds=80.0,  # simulated
            learning_rate=(0.1, 0.3, 1.0, 3.0),
            batch_size=2,  # examples a gradient
            seeds=12,
            tuning_seeds=4,  # that choose the step size, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """An arm for each method and number of workers."""
    compared = {
        "WAGMA-SGD": methods.wagma(period=config.period),
        "Allreduce-SGD": methods.allreduce_sgd(),
        "eager-SGD": methods.eager_sgd(),
        "local SGD": methods.local_sgd(period=10),
        "D-PSGD": methods.d_psgd(),
        "AD-PSGD": methods.ad_psgd(),
        "SGP": methods.sgp(peers=2),
    }

    def arm(name, workers):
        asleep = dj.cluster.sleepers(config.step_seconds, config.sleep_seconds, workers)
        cluster = dj.cluster.Cluster(workers, asleep)
        training = replicas(compared[name], cluster, optax.sgd)
        return dict(method=name, workers=workers), training

    return Experiment(
        question="What does WAGMA-SGD save when workers sleep, and at which cost?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[arm(name, workers) for workers in config.workers for name in compared],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        seconds=config.seconds,
        answer=lambda found: answer(found, config),
        published=published(config),
        records=records(config),
        figures=[
            figures.over("workers", "test_error", color="method", fixed=False),
            figures.update_times(),
            figures.curves("test_error", against="seconds", panels="workers"),
        ],
    )


def error(method: str, workers: int) -> Measure:
    """Test error after the simulated time, at the best step."""
    return tuned("test_error", method=method, workers=workers)


def published(config: ConfigDict) -> list[Published]:
    """Accuracy on 64 workers, as many as the paper's for ResNet-50."""
    li = "Li et al. (2021), arXiv:2005.00124"
    resnet = dict(
        setting="ResNet-50 on ImageNet, 64 GPUs, two sleep 0.32 s at each step",
        at_most=0.01,
        bound_is_ours=True,
    )

    def least_of_others(found):
        others = set(found.results["method"]) - {"WAGMA-SGD"}
        return min(error(method, 64)(found) for method in others)

    return [
        Published(
            text="WAGMA-SGD has the lowest error of all seven in the same time",
            source=li,
            said="the fastest time to solution",
            setting="a Transformer, whose sentences are of many lengths",
            measure=difference(error("WAGMA-SGD", 64), least_of_others),
            at_most=0.0,
            bound_is_ours=True,
        ),
        Published(
            text="After the same time WAGMA-SGD is about as accurate as Allreduce-SGD",
            source=li,
            said="an accuracy near that of Allreduce-SGD",
            measure=difference(error("WAGMA-SGD", 64), error("Allreduce-SGD", 64)),
            **resnet,
        ),
        Published(
            text="After the same time eager-SGD is no less accurate than Allreduce-SGD",
            source="Li et al. (2020), PPoPP, arXiv:1908.04207",
            said="no accuracy loss",
            measure=difference(error("eager-SGD", 64), error("Allreduce-SGD", 64)),
            **resnet,
        ),
        Published(
            text="On 1024 workers WAGMA-SGD has the highest throughput",
            source=li,
            said="2.1 times that of decentralized baselines",
            setting="reinforcement learning, 1024 GPUs",
            tried="The times of the paper's environments are not known to us.",
        ),
    ]


def records(config: ConfigDict) -> list[Record]:
    """Steps, lateness, and three accuracies."""

    def accuracy(method, workers):
        return tuned("test_accuracy", method=method, workers=workers)

    def of(metric, workers):
        return mean(metric, method="WAGMA-SGD", workers=workers)

    text = "Test accuracy of"
    return [
        Record("Steps of WAGMA-SGD on 64", of("updates", 64), 172, 0.0),
        Record("Mean lateness on 16", of("staleness_mean", 16), 0.5452, 0.002),
        Record(f"{text} WAGMA-SGD on 64", accuracy("WAGMA-SGD", 64), 0.9584, 0.0026),
        Record(
            f"{text} Allreduce-SGD on 64", accuracy("Allreduce-SGD", 64), 0.9532, 0.0029
        ),
        Record(f"{text} AD-PSGD on 256", accuracy("AD-PSGD", 256), 0.9284, 0.002),
    ]


def answer(found: Found, config: ConfigDict) -> str:
    """Seconds of a step, and the error against Allreduce-SGD's."""

    def seconds(method, workers):
        return config.seconds / mean("updates", method=method, workers=workers)(found)

    def changed(workers):
        own = error("WAGMA-SGD", workers), error("Allreduce-SGD", workers)
        less = between(difference(*own), found, same=0.0, form="+.3f")
        return f"{less} on {workers}"

    steps = (f"{seconds('WAGMA-SGD', own):.2f}" for own in config.workers)
    all_wait = seconds("Allreduce-SGD", config.workers[-1])
    return (
        f"A step of WAGMA-SGD takes {', '.join(steps)} s on"
        f" {', '.join(map(str, config.workers))} workers, where one of Allreduce-SGD"
        f" takes {all_wait:.2f} s. In the same time it changes the test error by"
        f" {', '.join(map(changed, config.workers))}."
    )
