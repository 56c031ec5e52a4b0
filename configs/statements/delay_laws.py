"""Records of `configs/delay_laws.py`."""

from ml_collections import ConfigDict

from experiments import analysis, statements
from experiments.results.estimates import Measure

_CONFIG = statements.config_of(__file__)
STABLE_STEP, limits = _CONFIG.STABLE_STEP, _CONFIG.limits


def stable_step(law: str, mean_delay: float) -> Measure:
    """The largest step up to which a seed ends no higher, the mean over seeds."""

    def measure(run):
        rows = analysis.where(run.results, law=law, mean_delay=mean_delay)
        table = STABLE_STEP.with_column(rows, run.curves)
        return float(table[STABLE_STEP.name].mean())

    return measure


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: largest stable steps; the steps of the grid are 10 % apart."""
    limit = limits(config)

    def over_theory(run):
        return stable_step("geometric", 4)(run) / limit("geometric", 4)

    return {
        "Stable step, mean 16, constant": stable_step("constant", 16),
        "Stable step, mean 16, Poisson": stable_step("poisson", 16),
        "Stable step, mean 16, uniform": stable_step("uniform", 16),
        "Stable step, mean 16, geometric": stable_step("geometric", 16),
        "Mean 4, geometric, over theory": over_theory,
    }
