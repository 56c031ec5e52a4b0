"""How often must replicas average, and may the average be late?

Local SGD with Adam inside, periods of 1 to 32 steps, beside averages that come late and
hide behind the local steps (DaSGD, DGA), on four workers: a one-block Transformer on
the characters of the standard library's own manual. A gradient takes 1 s (lognormal, a
spread of 0.3), an all-reduce 2 s. All have 600 simulated seconds, and their own best
step.

    python -m experiments.main --config=configs/local_sgd.py --workdir=runs/local_sgd
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
LIMITS |= at_least(0, "latency_seconds")
LIMITS |= positive("seconds", "learning_rate")


def get_config() -> ConfigDict:
    """Seven methods."""
    return ConfigDict(
        dict(
            workers=4,
            period=(1, 4, 8, 32),  # steps between two averages of local SGD
            late_by=4,  # steps, of DaSGD's average every 8
            service_spread=0.3,  # of a gradient's time of 1 s, standard deviation
            latency_seconds=0.5,  # of a message; an all-reduce of 4 workers is 4
            seconds=600.0,  # simulated
            learning_rate=(0.002, 0.004, 0.008, 0.016, 0.032),  # of Adam
            batch_size=4,  # windows a gradient
            context=32,  # characters
            seeds=5,
            tuning_seeds=3,  # that choose the step size, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """An arm for each method."""
    cluster = dj.cluster.Cluster(
        config.workers,
        dj.cluster.lognormal(1.0, config.service_spread),
        communication=dj.cluster.Communication(latency_seconds=config.latency_seconds),
    )

    def adam(learning_rate):
        return optax.adam(learning_rate)

    compared = [
        (dict(method="gradients"), methods.allreduce_sgd()),
        *(
            (dict(method="local SGD", period=period), methods.local_sgd(period))
            for period in config.period
        ),
        (dict(method="DaSGD", period=8), methods.dasgd(8, config.late_by)),
        (dict(method="DGA", period=1), methods.dga(delay=2)),
    ]

    return Experiment(
        question="How often must replicas average, and may the average be late?",
        task=tasks.char_lm(batch_size=config.batch_size, context=config.context),
        arms=[(labels, replicas(own, cluster, adam)) for labels, own in compared],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        seconds=config.seconds,
        answer=lambda found: answer(found, config),
        published=published(config),
        records=records(config),
        figures=[
            figures.over("period", "test_loss", color="method", fixed=False),
            figures.curves("test_loss", against="seconds"),
            figures.update_times(),
        ],
    )


def loss(method: str, **where) -> Measure:
    """Test loss in nats a character, at the best step."""
    return tuned("test_loss", method=method, **where)


def published(config: ConfigDict) -> list[Published]:
    """That late averages pay; the bounds are ours."""
    del config
    return [
        Published(
            text="In the same time DaSGD trains at least as well as local SGD",
            source="DaSGD (2020), arXiv:2006.00441",
            said="all communication is hidden, and convergence stays O(1/sqrt(N))",
            measure=difference(loss("DaSGD"), loss("local SGD", period=8)),
            at_most=0.0,
            bound_is_ours=True,
        ),
        Published(
            text="In the same time DGA trains better than averaging gradients at once",
            source="Zhu et al. (2021), DGA, NeurIPS",
            said="2.55 to 4.07 times as fast",
            setting="16 Raspberry Pi",
            measure=difference(loss("DGA"), loss("gradients")),
            at_most=0.0,
            bound_is_ours=True,
        ),
    ]


def records(config: ConfigDict) -> list[Record]:
    """How many steps fit, and the losses."""
    del config
    return [
        Record("Steps of gradients", mean("updates", method="gradients"), 179, 0.0),
        Record("Steps of DaSGD", mean("updates", method="DaSGD"), 576, 0.0),
        Record("Test loss of gradients", loss("gradients"), 2.292, 0.0084),
        Record(
            "Test loss, averages every 8", loss("local SGD", period=8), 2.119, 0.011
        ),
        Record("Test loss of DaSGD", loss("DaSGD"), 2.101, 0.0093),
    ]


def answer(found: Found, config: ConfigDict) -> str:
    """The best period against averaging at each step, and the late average."""
    each = {own: loss("local SGD", period=own)(found) for own in config.period}
    best = min(each, key=each.get)
    kept = loss("local SGD", period=best)
    less = between(difference(kept, loss("gradients")), found, same=0.0, form="+.3f")
    late = difference(loss("DaSGD"), loss("local SGD", period=8))
    changed = between(late, found, same=0.0, form="+.3f")
    return (
        f"The test loss is lowest with an average every {best} steps: {each[best]:.3f}"
        f" nats, {less} relative to averaging gradients at each"
        f" step. Where the average every 8 steps comes {config.late_by} steps late, the"
        f" loss changes by {changed}."
    )
