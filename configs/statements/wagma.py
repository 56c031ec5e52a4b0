"""What Li et al. say of WAGMA-SGD and of eager-SGD, and our numbers."""

from ml_collections import ConfigDict

from experiments.results.claims import Published
from experiments.results.estimates import Measure
from experiments.results.measures import difference, mean, tuned


def published(config: ConfigDict) -> list[Published]:
    """Accuracy on many workers, and on 64, as many as the paper's for ResNet-50."""
    li = "Li et al. (2021), arXiv:2005.00124"
    resnet = dict(
        setting="ResNet-50 on ImageNet, 64 GPUs, two sleep 0.32 s at each step",
        at_most=0.01,
        bound_is_ours=True,
    )

    def least_of_others(found, workers=64):
        others = set(found.results["method"]) - {"WAGMA-SGD"}
        return min(error(method, workers)(found) for method in others)

    def most_behind(found):
        """Its error less the least of the others', where it is furthest behind."""
        many = [count for count in config.workers if count >= 64]
        return max(
            error("WAGMA-SGD", count)(found) - least_of_others(found, count)
            for count in many
        )

    return [
        Published(
            text="On 64 and on 256 workers WAGMA-SGD has the lowest error of all seven"
            " in the same time",
            source=f"{li}, abstract",
            said="the fastest time to solution; up to 1,024 GPUs",
            setting="ResNet-50, a Transformer and reinforcement learning, on 64 to"
            " 1,024 GPUs",
            measure=most_behind,
            at_most=0.0,
            bound_is_ours=True,
        ),
        Published(
            text="After the same time WAGMA-SGD is about as accurate as Allreduce-SGD",
            source=li,
            said="an accuracy near that of Allreduce-SGD",
            measure=difference(error("WAGMA-SGD"), error("Allreduce-SGD")),
            **resnet,
        ),
        Published(
            text="After the same time eager-SGD is no less accurate than Allreduce-SGD",
            source="Li et al. (2020), PPoPP, arXiv:1908.04207",
            said="no accuracy loss",
            measure=difference(error("eager-SGD"), error("Allreduce-SGD")),
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


def records(config: ConfigDict) -> dict[str, Measure]:
    """Steps, lateness, and three accuracies."""
    del config

    def measure_of(metric, workers):
        return mean(metric, method="WAGMA-SGD", workers=workers)

    def accuracy(method, workers):
        return tuned("test_accuracy", method=method, workers=workers)

    text = "Test accuracy of"
    return {
        "Steps of WAGMA-SGD on 64": measure_of("updates", 64),
        "Mean lateness on 16": measure_of("staleness_mean", 16),
        f"{text} WAGMA-SGD on 64": accuracy("WAGMA-SGD", 64),
        f"{text} Allreduce-SGD on 64": accuracy("Allreduce-SGD", 64),
        f"{text} AD-PSGD on 256": accuracy("AD-PSGD", 256),
    }


def error(method: str, workers: int = 64) -> Measure:
    """Test error after the simulated time, at the best step."""
    return tuned("test_error", method=method, workers=workers)
