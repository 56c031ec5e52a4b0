"""Which variant of elastic averaging, and how often must workers see the center?

The eight variants of You, Buluc and Demmel (arXiv:1708.02983) on eight workers, each
meeting the center after 1, 16 or 64 local steps: an MLP on scikit-learn's digits.
Service times are lognormal with mean 1 s, and a message takes 0.1 s, one at a time
where the center has a lock; all have 400 simulated seconds and their own best step.

    python -m experiments.main --config=configs/easgd_variants.py \
        --workdir=runs/easgd_variants
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

VARIANTS = {
    "Original EASGD": methods.original_easgd,
    "Async EASGD": methods.async_easgd,
    "Async MEASGD": methods.async_measgd,
    "Hogwild EASGD": methods.ea_wild,
    "Sync EASGD": methods.sync_easgd,
    "Async SGD": methods.async_sgd,
    "Async MSGD": methods.async_msgd,
    "Hogwild SGD": methods.hogwild_sgd,
}


LIMITS = at_least(1, "period") | at_least(2, "workers")
LIMITS |= at_least(0, "message_seconds")
LIMITS |= positive("seconds", "learning_rate")


def get_config() -> ConfigDict:
    """Eight variants with three periods."""
    return ConfigDict(
        dict(
            workers=8,
            period=(1, 16, 64),  # local steps between two meetings
            service_spread=0.2,  # of a gradient's time of 1 s, standard deviation
            message_seconds=0.1,  # one at a time where there is a lock
            seconds=400.0,  # simulated
            learning_rate=(0.0001, 0.0003, 0.001, 0.004, 0.015, 0.06, 0.25, 1.0),
            batch_size=4,  # examples a gradient
            seeds=16,
            tuning_seeds=6,  # that choose the step size, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """An arm for each variant and period."""
    link = dj.cluster.Communication(
        message_bytes=config.message_seconds, bytes_per_second=1.0, serial=True
    )
    service = dj.cluster.lognormal(1.0, config.service_spread)
    cluster = dj.cluster.Cluster(config.workers, service, communication=link)

    def arm(variant, period):
        training = replicas(VARIANTS[variant](period=period), cluster, optax.sgd)
        return dict(variant=variant, period=period), training

    return Experiment(
        question="Which elastic averaging, and how often must workers see the center?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[arm(variant, period) for variant in VARIANTS for period in config.period],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        seconds=config.seconds,
        answer=lambda found: answer(found, config),
        published=published(config),
        records=records(config),
        figures=[
            figures.over(
                *("period", "test_error"),
                **dict(color="variant", fixed=False),
                x_label="local steps between two meetings",
                title="Who needs to see the center often?",
            ),
            figures.curves("test_error", against="seconds", panels="period"),
        ],
    )


def error(variant: str, period: int) -> Measure:
    """Test error at the best step; a guess where that ends higher."""
    return tuned("test_error", lost=0.9, variant=variant, period=period)


def published(config: ConfigDict) -> list[Published]:
    """Elastic averages beside pushes, at each step and rarely."""
    you = "You, Buluc, Demmel (2017), SC, arXiv:1708.02983"
    zhang = dict(
        source="Zhang, Choromanska, LeCun (2015), arXiv:1412.6651 (as we recall)",
        setting="a 7-layer network on CIFAR-10, 4 workers",
        bound_is_ours=True,
    )
    rare = max(config.period)

    nets = "LeNet, AlexNet, GoogLeNet and VGG"
    own = dict(source=you, setting=nets, bound_is_ours=True)

    def ahead(this, that, said):
        told = that.replace("Async", "async")
        return Published(
            text=f"{this} trains better than {told} in the same time",
            said=f"{this} {said}",
            measure=difference(error(this, 1), error(that, 1)),
            at_most=0.0,
            **own,
        )

    return [
        ahead("Async EASGD", "Async SGD", "is faster"),
        ahead("Async MEASGD", "Async MSGD", "is faster and steadier"),
        ahead("Hogwild EASGD", "Hogwild SGD", "is faster"),
        Published(
            text="Sync EASGD and Hogwild EASGD differ by at most 0.02 in error, after"
            " the same time",
            said="they tie for the fastest",
            measure=difference(error("Sync EASGD", 1), error("Hogwild EASGD", 1)),
            at_least=-0.02,
            at_most=0.02,
            **own,
        ),
        Published(
            text="What is pushed after 64 local steps fails, where EASGD does not",
            said="DOWNPOUR is unstable at periods of 16 and 64",
            measure=difference(error("Async SGD", rare), error("Async EASGD", rare)),
            at_least=0.1,
            **zhang,
        ),
        Published(
            text="EASGD keeps its error at a period of 64",
            said="EASGD keeps it or improves",
            measure=difference(error("Async EASGD", rare), error("Async EASGD", 1)),
            at_most=0.02,
            **zhang,
        ),
    ]


def records(config: ConfigDict) -> list[Record]:
    """Steps with a lock and without, and errors."""
    del config

    def steps(variant):
        return mean("updates", variant=variant, period=1)

    return [
        Record("Steps of Async EASGD, every 1", steps("Async EASGD"), 258, 0.0),
        Record("Steps of Hogwild EASGD, every 1", steps("Hogwild EASGD"), 355, 0.0),
        Record("Test error, Async EASGD, 64", error("Async EASGD", 64), 0.0593, 0.0024),
        Record(
            "Test error, Async MEASGD, 16", error("Async MEASGD", 16), 0.05735, 0.0021
        ),
        Record("Test error, Async SGD, 64", error("Async SGD", 64), 0.4954, 0.019),
    ]


def answer(found: Found, config: ConfigDict) -> str:
    """The variant with the lowest error at each period, and what pushing costs."""
    best, as_error = [], dict(same=0.0, form="+.3f")
    for period in config.period:
        each = {own: error(own, period)(found) for own in VARIANTS if "EASGD" in own}
        name, plain = min(each, key=each.get), error("Hogwild SGD", period)
        less = between(difference(error(name, period), plain), found, **as_error)
        best.append(
            f"{name} with a period of {period} ({each[name]:.3f}; against Hogwild SGD"
            f" {less})"
        )
    rare = max(config.period)
    pushed = difference(error("Async SGD", rare), error("Async EASGD", rare))
    return (
        f"The lowest test error of elastic averages has {', '.join(best)}. Workers that"
        f" push what they did every {rare} steps (Async SGD) have an error"
        f" {between(pushed, found, **as_error)} relative to elastic averaging (Async"
        " EASGD)."
    )
