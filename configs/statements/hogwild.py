"""Claims of Lian et al. and Niu et al. about workers without a lock, and records."""

from ml_collections import ConfigDict

from experiments import Published, statements
from experiments.results.estimates import Measure
from experiments.results.measures import mean, ratio, tuned

ages_of = statements.config_of(__file__).ages_of


def excess(workers: int, spread: float) -> Measure:
    """The excess loss at the best step."""
    return tuned("excess_loss", workers=workers, ages=ages_of(spread))


def mixed(workers: int) -> Measure:
    """Excess loss of reads of all ages over the excess loss of reads of one age."""
    return ratio(excess(workers, 1.0), excess(workers, 0.0))


def published(config: ConfigDict) -> list[Published]:
    """The claims about the number of workers that costs nothing, and about a lock."""
    most = config.workers[-1]
    return [
        Published(
            text="Ten cores without a lock need less time than ten that take turns",
            source="Niu, Recht, Re, Wright (2011), arXiv:1106.5730, abstract and body",
            said="faster by an order of magnitude than schemes with locks: 9.5 s and"
            " 61.8 s (RCV1)",
            setting="a sparse support vector machine, ten cores",
            tried="How long a lock takes beside a gradient is an input of a simulation,"
            " so the ratio of times would be one too.",
        ),
        Published(
            text="With up to sqrt(updates) workers and no lock the excess loss is at"
            " most twice one worker's",
            source="Lian, Huang, Li, Liu (2015), arXiv:1506.08272, abstract",
            said="a linear speed-up while there are at most sqrt(updates) workers",
            setting="theory, of nonconvex losses",
            measure=ratio(excess(most, 1.0), excess(1, 0.0)),
            at_most=2.0,
            bound_is_ours=True,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: the change by mixed ages, and a mean staleness, P - 1."""
    return {
        "All ages over one, 16 workers": mixed(16),
        "All ages over one, 64 workers": mixed(64),
        "Staleness, 16": mean("staleness_mean", workers=16),
    }
