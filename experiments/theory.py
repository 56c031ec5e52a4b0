"""What theory says of an arm: how stale its gradients are, how long an update takes."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import delayjax as dj
from experiments import arms
from experiments.tuning import Series


def _ssp(workers: int, bound: float) -> float | None:
    if bound == 0:  # all read the same version and are applied one after another
        return (workers - 1) / 2
    return workers - 1.0 if bound == math.inf else None


def _psp(
    workers: int, sample: int, bound: float, *, poll_seconds: float = math.inf
) -> float | None:
    if sample == 0 or bound == math.inf:  # no worker waits
        return workers - 1.0
    if sample >= workers - 1:  # for all others
        return _ssp(workers, bound)
    return None


def _groups(workers: int, num_groups: int, *, data: str = "dynamic") -> float | None:
    if data != "dynamic" or workers % num_groups:  # groups end, or weigh differently
        return None
    return num_groups - 1.0


# Long-run means, for any service times that end and any speeds, where a worker reads as
# soon as it is started: an update ages every gradient in flight by one. (P - 1) / K
# without waiting, P / K - 1 where a worker waits for its update (docs/clusters.md).
# Arguments are named as the protocols', in both tables.
_STALENESS = {
    "hardsync": lambda workers: 0.0,
    "n_softsync": lambda workers, n: (workers - 1) / (workers // n),
    "k_sync": lambda workers, k: 0.0,
    "k_batch_sync": lambda workers, k: 0.0,
    "k_async": lambda workers, k: workers / k - 1,
    "k_batch_async": lambda workers, k: (workers - 1) / k,
    "ssp": _ssp,
    "psp": _psp,
    "round_robin": lambda workers: workers - 1.0,
    "groups": _groups,
    "rennala": lambda workers, batch: 0.0,
    "mindflayer": lambda workers, trials, allotted_seconds: 0.0,
    "gradient_coding": lambda workers, num_clusters, load, *, dynamic=False: 0.0,
    "event_triggered": lambda workers, probability: probability * (workers - 1),
}


def _sleepers(
    count: int,
    k: int,
    /,
    seconds: float,
    sleep_seconds: float,
    workers: int,
    *,
    asleep: int = 2,
) -> float | None:
    if k == count == workers:  # the sleepers are waited for
        return seconds + sleep_seconds * (asleep > 0)
    if k == count == 1:
        return seconds + sleep_seconds * (1 - (1 - 1 / workers) ** asleep)
    return None


_SERVICE_TIMES = {
    factory.__name__: factory
    for factory in (
        dj.cluster.constant,
        dj.cluster.empirical,
        dj.cluster.exponential,
        dj.cluster.gamma,
        dj.cluster.lognormal,
        dj.cluster.pareto,
        dj.cluster.shifted_exponential,
        dj.cluster.uniform,
    )
}


class _Times(NamedTuple):
    """Service times of P workers, equally distributed."""

    workers: int
    service: arms.Call

    def k_sync(self, k: int) -> float | None:
        if self.service.name == "sleepers":
            return self._sleeping(self.workers, k)
        return self._known(dj.cluster.protocols.k_sync(k))

    def k_batch_sync(self, k: int) -> float | None:
        return self._known(dj.cluster.protocols.k_batch_sync(k))

    def k_async(self, k: int) -> float | None:
        if self.service.name == "sleepers":  # no waiting, or no stragglers
            return self.k_batch_async(1) if k == 1 else self.k_sync(k)
        return self._known(dj.cluster.protocols.k_async(k))

    def k_batch_async(self, k: int) -> float | None:
        if self.service.name == "sleepers":
            mean = self._sleeping(1, 1)
            return None if mean is None else k * mean / self.workers
        return self._known(dj.cluster.protocols.k_batch_async(k))

    def event_triggered(self, probability: float) -> float | None:
        every = self.k_batch_async(1)
        return None if every is None else every / probability

    def ssp(self, bound: float) -> float | None:
        if bound == math.inf:  # no worker waits
            return self.k_batch_async(1)
        together = self.k_sync(self.workers) if bound == 0 else None
        return None if together is None else together / self.workers

    def _known(self, scheme: dj.cluster.protocols.KScheme) -> float | None:
        service_time = _service_time(self.service)
        if service_time is None:
            return None
        try:
            return scheme.update_seconds(self.workers, service_time)
        except ValueError:  # no closed form, or too heavy a tail for an integral
            return None

    def _sleeping(self, of: int, k: int) -> float | None:
        # not independent: who sleeps depends on who else does
        return _sleepers(of, k, *self.service.arguments, **self.service.options)


def _service_time(call: arms.Call) -> dj.cluster.ServiceTime | None:
    """The service time of this name; None where it has no formulas."""
    if call.name not in _SERVICE_TIMES:
        return None
    return _SERVICE_TIMES[call.name](*call.arguments, **call.options)


# Long-run means of the time between two updates, in seconds; None where it is not
# known under these service times.
_SECONDS = {
    "hardsync": lambda times: times.k_sync(times.workers),
    "n_softsync": lambda times, n: times.k_batch_async(times.workers // n),
    "k_sync": lambda times, k: times.k_sync(k),
    "k_batch_sync": lambda times, k: times.k_batch_sync(k),
    "k_async": lambda times, k: times.k_async(k),
    "k_batch_async": lambda times, k: times.k_batch_async(k),
    "ssp": lambda times, bound: times.ssp(bound),
    "event_triggered": lambda times, probability: times.event_triggered(probability),
    # a step of all workers: who wait for each other in each, or never
    "allreduce_sgd": lambda times: times.k_sync(times.workers),
    "ad_psgd": lambda times: times.k_batch_async(times.workers),
    "gossip": lambda times, push=False, period=1: times.k_batch_async(times.workers),
}


def mean_staleness(arm: str, cluster: Mapping[str, Any]) -> float | None:
    """The mean staleness that theory gives an arm, in updates; None if it gives none.

    Args:
        arm: its name.
        cluster: config.cluster. No worker may hang, and none may queue to read.

    Example:
        >>> cluster = {"workers": 8, "service": "pareto(1.0, 2.0)", "serial": False}
        >>> mean_staleness("k_async(2)", cluster)
        3.0
        >>> mean_staleness("ringmaster(16)", cluster)
    """
    own = _own(arm, cluster)
    if own is None or own["serial"] or "infinite_bernoulli" in own["service"]:
        return None
    return _of(_STALENESS, arm, own["workers"])


def update_seconds(arm: str, cluster: Mapping[str, Any]) -> float | None:
    """The mean seconds between updates that theory gives an arm; None if it gives none.

    Args:
        arm: its name.
        cluster: config.cluster. Workers must be equally fast, and messages free.

    Example:
        >>> from configs import default
        >>> cluster = default.get_config().cluster.to_dict()  # exponential times
        >>> update_seconds("k_sync(2)", cluster) == 1 / 7 + 1 / 8
        True
        >>> update_seconds("groups(2)", cluster)
    """
    own = _own(arm, cluster)
    if own is None or not _equal_and_free(own):
        return None
    return _of(_SECONDS, arm, _Times(own["workers"], arms.parse_call(own["service"])))


class Decay(NamedTuple):
    """What the rate of plain asynchronous SGD on a quadratic follows from."""

    slowest: float  # eta lambda of the smallest curvature above 0
    stiffest: float  # of the largest
    seconds: dj.cluster.ServiceTime  # of a gradient


def decay(series: Series, step: float, config: Mapping[str, Any]) -> Decay | None:
    """What the rate follows from at which an arm's error dies out; None if unknown.

    It is known of plain SGD that updates at each gradient, of workers that are equally
    fast and whose messages are free.

    Args:
        series: of the arm.
        step: eta, the step size.
        config: the run's, with task.eigenvalues.
    """
    arm, opt = arms.parse(series.arm), config["opt"]
    own = {**config["cluster"], "warmup_steps": opt["warmup_steps"], **arm.changes}
    seconds = _service_time(arms.parse_call(own["service"]))
    each = arm.protocol.name in ("k_async", "k_batch_async")
    count = *arm.protocol.arguments, *arm.protocol.options.values()
    if (
        series != series.plain
        or series.optimizer != "sgd"
        or opt["sgd"]["momentum"]
        or opt["decay"] != "constant"
        or own["warmup_steps"] > 1
        or not (each and count == (1,))
        or not _equal_and_free(own)
        or own["read_spread"]
        or seconds is None
        or seconds.tail_rate == 0
    ):
        return None
    curvatures = [value for value in config["task"]["eigenvalues"] if value > 0]
    return Decay(step * min(curvatures), step * max(curvatures), seconds)


def _equal_and_free(cluster: Mapping[str, Any]) -> bool:
    """Whether workers are equally fast and messages take no time."""
    return (
        cluster["speeds"] == "equal"
        and (not cluster["slow_workers"] or cluster["slow_factor"] == 1.0)
        and not cluster["latency_seconds"]
        and not (cluster["message_bytes"] and cluster["bytes_per_second"])
    )


def _own(arm: str, cluster: Mapping[str, Any]) -> dict[str, Any] | None:
    """The cluster of an arm; None where it was logged."""
    return None if arm == arms.LOGGED else {**cluster, **arms.parse(arm).changes}


def _of(table: Mapping[str, Callable], arm: str, first: Any) -> float | None:
    call = arms.parse(arm).protocol
    if call.name not in table:
        return None
    return table[call.name](first, *call.arguments, **call.options)
