"""The clusters of the comparison."""

import delayjax as dj
from experiments.training.recorded_job import recorded_job

NO_DELAY = "no delay"


def clusters() -> dict[str, dj.cluster.Cluster]:
    """{name: cluster} of the comparison, with 1, 5 and 17 workers.

    A gradient is applied when it arrives, so the mean staleness of P workers is P - 1.

    | name | service times | staleness |
    |---|---|---|
    | no delay | | 0 |
    | constant | all equal | P - 1 |
    | memoryless | exponential | geometric, mean P - 1 |
    | straggler | lognormal, a spread of 0.3; one worker 5 times slower | large for it |
    | heavy tails | Pareto of shape 1.5, the same straggler | sometimes large for all |
    """
    made = dj.cluster.Cluster
    exponential, constant = dj.cluster.exponential(1.0), dj.cluster.constant(1.0)
    lognormal, pareto = dj.cluster.lognormal(1.0, 0.3), dj.cluster.pareto(1 / 3, 1.5)
    return {
        NO_DELAY: made(1, constant),
        "constant, 4": made(5, constant),
        "memoryless, 4": made(5, exponential),
        "straggler, 4": made(5, lognormal, slowdown=[1.0] * 4 + [5.0]),
        "constant, 16": made(17, constant),
        "memoryless, 16": made(17, exponential),
        "heavy tails, 16": made(17, pareto, slowdown=[1.0] * 16 + [5.0]),
    }


def some(*names: str) -> dict[str, dj.cluster.Cluster]:
    """{name: cluster}: the cluster without delay, and the clusters of these names."""
    known = clusters()
    return {name: known[name] for name in (NO_DELAY, *names)}


def late() -> dict[str, dj.cluster.Cluster]:
    """{name: cluster}: all clusters except the cluster without delay."""
    return {name: one for name, one in clusters().items() if name != NO_DELAY}


def recorded() -> dict[str, dj.cluster.Cluster]:
    """{name: cluster}: no delay, and 17 workers with the times of a recorded job."""
    steps = recorded_job(workers=17).service("steps")
    return some() | {"recorded, 16": dj.cluster.Cluster(17, steps)}
