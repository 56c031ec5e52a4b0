"""What Basu et al. say of progressive grouping, and records."""

from ml_collections import ConfigDict

from experiments import Published, statements
from experiments.results.estimates import Measure
from experiments.results.measures import difference, mean, ratio, tuned

_CONFIG = statements.config_of(__file__)
DIVIDED, progressive = _CONFIG.DIVIDED, _CONFIG.progressive


def slower(grouping: str, **where: int) -> Measure:
    """The run's time over that without a straggler."""
    run = mean("seconds", grouping=grouping, **where)
    return ratio(run, mean("seconds", grouping="no straggler"))


def accuracy(grouping: str, **where: int) -> Measure:
    """Test accuracy at the best step, with steps divided by staleness."""
    return tuned("test_accuracy", grouping=grouping, law=DIVIDED, **where)


def change(grouping: str, **where: int) -> Measure:
    """Test accuracy less the accuracy without a straggler."""
    return difference(accuracy(grouping, **where), accuracy("no straggler"))


def published(config: ConfigDict) -> list[Published]:
    """What progressive grouping costs; how often it looks again is not published."""
    tried = "Every 5, where it holds: the first 20 are as slow as the straggler."
    late, worse = dict(at_most=1.2), dict(at_least=-0.025)
    return [
        Published(
            text=f"Progressive grouping {text}; it looks again every {every} updates",
            source="Basu, Saxena, Panja, Verma, HiPC 2018",
            said=said,
            setting="one node is later by more than 300 %; model and data not public",
            measure=measure(progressive(every)),
            tried=tried * (every == 20 and measure is slower),
            **bound,
        )
        for every in config.examine_every
        for text, said, measure, bound in (
            ("takes 1.2 times as long at most", "20 % more time", slower, late),
            ("loses 2.5 points of accuracy at most", "2.5 %", change, worse),
        )
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """Times, and accuracies with steps divided by staleness."""
    del config
    one, four, all_of = (dict(grouping="dynamic data", groups=n) for n in (1, 4, 16))
    return {
        "Seconds without a straggler": mean("seconds", grouping="no straggler"),
        "Time over that, one group": slower(**one),
        "Time over that, 4 groups": slower(**four),
        "Time over that, 16 groups": slower(**all_of),
        "Test accuracy, one group": accuracy(**one),
        "Test accuracy, 16 groups": accuracy(**all_of),
    }
