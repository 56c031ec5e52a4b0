"""Claims of AdaSync's authors, and records of `configs/adasync.py`."""

from ml_collections import ConfigDict

from experiments import Published, claims, statements
from experiments.results.estimates import Measure
from experiments.results.measures import least, mean, ratio, tuned
from experiments.results.metrics import TimeTo

CLOCK = statements.config_of(__file__).CLOCK


def until(config: ConfigDict, **where) -> Measure:
    """Simulated seconds to the target, at the best step in `where`."""
    return tuned(TimeTo("train_loss", config.target, along=CLOCK), **where)


def over_fastest_kept(config: ConfigDict, **where) -> Measure:
    """Seconds of AdaSync over the seconds of the best fixed K, which tuning chooses."""
    each = [until(config, method="K kept", k0=k, **where) for k in config.k]
    return ratio(until(config, method="AdaSync", **where), least(each))


def published(config: ConfigDict) -> list[Published]:
    """The claims about AdaSync against all fixed K, each tuned."""
    return [
        Published(
            text="With the step tuned for each, AdaSync is there before the best K"
            " kept (our reading)",
            source="Dutta, Wang, Joshi (2020), arXiv:2003.10579, abstract and body"
            " (as we recall)",
            said="gradually varying synchronicity: K is chosen so that the error bound"
            " falls fastest in time",
            setting="a network on CIFAR-10, 8 workers, a step of 0.12, K from 1 on",
            measure=over_fastest_kept(config),
            at_most=1.0,
            bound_is_ours=True,
            tried="Tuning seeds choose the best K too.",
            chosen=claims.Chosen.UNSEEN,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: times, K at the end, and the time of an update with all workers."""
    step, all_8 = dict(learning_rate=0.02), dict(method="K kept", k0=8)
    return {
        "K of AdaSync at the end, step of 0.02": mean("k", method="AdaSync", **step),
        "Seconds of AdaSync, step of 0.02": until(config, method="AdaSync", **step),
        "Seconds of AdaSync / fastest K, step of 0.02": over_fastest_kept(
            config, **step
        ),
        "Seconds of AdaSync / fastest K, tuned": over_fastest_kept(config),
        "Seconds of an update that waits for all": ratio(
            mean(CLOCK, **all_8), mean("updates", **all_8)
        ),
    }
