"""Claims of sources about long sequences, and records."""

from ml_collections import ConfigDict

from experiments import Published, claims, statements
from experiments.results.estimates import Measure
from experiments.results.measures import difference, least, mean, ratio, tuned

WAITS = statements.config_of(__file__).WAITS


def published(config: ConfigDict) -> list[Published]:
    """The claims of the authors of WAGMA-SGD and of eager-SGD."""
    most = max(config.spread)
    kept = (
        "In the run of this row eager-SGD kept a late gradient until its worker was in"
        " time; by now it is sent in the next step, as in its source."
    )

    def saved(method, *others):
        best = least([error(other, most) for other in others])
        return difference(best, error(method, most))

    return [
        Published(
            text="Where lengths vary most, WAGMA-SGD has at most the test error of the"
            " best of Allreduce-SGD, local SGD and eager-SGD",
            source="Li et al. (2021), arXiv:2005.00124, abstract",
            said="the highest score in the shortest training time",
            setting="a Transformer that translates",
            measure=saved("WAGMA-SGD", WAITS, "local SGD", "eager-SGD"),
            at_least=0.0,
            bound_is_ours=True,
            tried=kept,
            chosen=claims.Chosen.UNSEEN,
        ),
        Published(
            text="Where videos vary in length eager-SGD loses no accuracy",
            source="Li et al. (2020), arXiv:1908.04207",
            said="1.27 times faster, without a loss of accuracy",
            setting="an LSTM on videos (UCF101)",
            measure=saved("eager-SGD", WAITS),
            at_least=-0.01,
            bound_is_ours=True,
            tried=kept,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: steps and an error, for varied lengths."""
    most, wagma = max(config.spread), "WAGMA-SGD"

    def steps(method):
        return mean("updates", method=method, spread=most)

    return {
        "Steps of Allreduce-SGD": steps(WAITS),
        "Steps, WAGMA-SGD / Allreduce-SGD": ratio(steps(wagma), steps(WAITS)),
        "Test error of WAGMA-SGD": error(wagma, most),
    }


def error(method: str, spread: float) -> Measure:
    """Test error after the simulated time, at the best step."""
    return tuned("test_error", method=method, spread=spread)
