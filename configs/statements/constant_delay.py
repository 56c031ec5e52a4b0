"""Claims about the gap under delay, and records of `configs/constant_delay.py`."""

from ml_collections import ConfigDict

from experiments import Published, claims
from experiments.results.estimates import Measure
from experiments.results.measures import kept, tuned


def gap(delay: float, longest: float) -> Measure:
    """Test loss less training loss, at the step that is best for the longest delay."""
    return kept("gap", best_at=dict(delay=longest), delay=delay)


def published(config: ConfigDict) -> list[Published]:
    """The claims of the paper about one step size."""
    *delays, longest = sorted(config.delay)

    def most(run):
        """The largest change of the gap, of all delays but the longest."""
        late = (gap(delay, longest)(run) for delay in delays if delay > 0)
        return max(late) - gap(0, longest)(run)

    return [
        Published(
            text=f"At one step size each delay up to {max(delays)} makes the train/test"
            " gap smaller",
            source="Deng, Shen, Li, Sun, Li, Tao (2023), arXiv:2308.09430, abstract",
            said="a delay reduces the generalization error of delayed SGD",
            setting="convex quadratics in theory; RCV1, GISETTE, MNIST and IJCNN",
            measure=most,
            at_most=0.0,
            bound_is_ours=True,
            tried=f"A network on 1,438 digits, at the step that is best for {longest}.",
            chosen=claims.Chosen.LATER,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: accuracies, gaps and losses at the best steps."""
    return {
        "Test accuracy without delay": tuned("test_accuracy", delay=0),
        "Test accuracy 16 updates late": tuned("test_accuracy", delay=16),
        "Test accuracy 64 updates late": tuned("test_accuracy", delay=64),
        "Gap without delay, best step": tuned("gap", delay=0),
        "Gap 16 updates late, best step": tuned("gap", delay=16),
        "Gap 32 late, step best for the longest": gap(32, max(config.delay)),
        "Training loss 16 late": tuned("train_loss", delay=16),
    }
