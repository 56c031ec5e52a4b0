"""Methods that keep a model on each worker, by their papers' names."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import delayjax as dj
from experiments.training import timetable
from experiments.training.timetable import Timetable


class Now(NamedTuple):
    """A worker's facts of one step, as in `Timetable`; None before they are needed."""

    place: Any = None  # int32 []
    behind: Any = None  # int32 []
    in_time: Any = None  # bool []


class Method(NamedTuple):
    """How a method mixes models, and the time that this takes in a cluster."""

    # local optimizer, now, P -> a transformation over the axis "workers"; with a server
    # its optimizer is the last argument
    transformation: Callable[..., Any]
    # cluster, steps, seed -> the times of all events
    timetable: Callable[[dj.cluster.Cluster, int, int], Timetable]
    # to evaluate: "mean", "center", "outer" (its center) or "shared" (all are equal)
    model: str = "mean"
    server: Callable[..., Any] | None = None  # grid axes -> the server's optimizer


def allreduce_sgd() -> Method:
    """Averages gradients at each step, so that all workers share one model."""
    return Method(
        lambda inner, now, workers: dj.exchange.mean(inner),
        _all_meet(),
        "shared",
    )


def a2sgd() -> Method:
    """Workers exchange only two means of their gradients, so their models differ."""

    def two_numbers(link, workers):
        free = dataclasses.replace(link, message_bytes=0.0)
        return free.all_reduce_seconds(workers)

    return Method(
        lambda inner, now, workers: dj.exchange.a2sgd(inner),
        _in_step(dj.cluster.waits_for_all(1), two_numbers),
    )


def eager_sgd(trigger: str = "majority", period: int = 10) -> Method:
    """Averages the gradients that are in time; a late gradient counts a step later.

    Workers synchronize every `period` steps and may lag in between.
    """
    if trigger not in ("solo", "majority"):
        raise ValueError(f"`trigger` must be 'solo' or 'majority', got {trigger!r}.")

    def times(cluster, steps, seed):
        seconds = cluster.step_seconds(steps, seed=seed)
        drawn = np.random.default_rng(seed).integers(cluster.workers, size=steps)
        resync = dj.cluster.waits_for_all(period)

        def waits(step, workers):
            matrix = resync(step, workers)
            if trigger == "majority":
                matrix[:, drawn[step]] = True
            return matrix | np.eye(workers, dtype=bool)

        cost = _link(cluster).all_reduce_seconds(cluster.workers)
        on = dj.cluster.finish_times(seconds, waits, exchange_seconds=cost)
        table = timetable.together(seconds, on)
        first = table.arrived.min(axis=1)
        if trigger == "majority":
            first = table.arrived[np.arange(steps), drawn]
        in_time = table.arrived <= first[:, None]
        return timetable.together(seconds, on, in_time=in_time)

    return Method(
        lambda inner, now, workers: dj.exchange.partial_mean(
            inner, lambda step: now.in_time, carry_once=True
        ),
        times,
        "shared",
    )


def local_sgd(period: int) -> Method:
    """Averages models every `period` steps."""
    return Method(
        lambda inner, now, workers: dj.averaging.local_sgd(inner, period=period),
        _all_meet(period),
    )


def outer(
    server: Callable[..., Any],
    period: int,
    delay: int = 0,
    merge: Any = dj.averaging.overwriting,
    compress: Any = None,
    fragments: int = 1,
) -> Method:
    """Gives the mean change of `period` local steps to a second optimizer: DiLoCo.

    Args:
        server: grid axes -> the second optimizer.
        period: the local steps between two exchanges.
        delay: the local steps during which an exchange is in flight. One of so many
            slices is sent beside each step, and workers wait for it.
        merge: as in `dj.averaging.outer`.
        compress: as in `dj.averaging.outer`. The cluster's link has the bytes of its
            messages: `Communication(message_bytes=...)`.
        fragments: parts of the model, which are exchanged `period` / `fragments` steps
            apart.
    """

    def seconds(link, workers):
        return link.all_reduce_seconds(workers, fragments=fragments * max(delay, 1))

    waits = dj.cluster.waits_for_all(1 if delay else period // fragments)
    return Method(
        lambda inner, now, workers, at_center: dj.averaging.outer(
            inner,
            at_center,
            period=period,
            delay=delay,
            merge=merge,
            compress=compress,
            fragments=fragments,
        ),
        _in_step(waits, seconds, lag=min(delay, 1)),
        "outer",
        server,
    )


def eager_outer(server: Callable[..., Any], period: int) -> Method:
    """Outer steps of a worker's fresh change and the others' last: Eager DiLoCo.

    A change is sent in `period` slices, one beside each step, and workers wait for it.

    Args:
        server: as in `outer`.
        period: as in `outer`.
    """

    def slice_seconds(link, workers):
        return link.all_reduce_seconds(workers, fragments=period)

    return Method(
        lambda inner, now, workers, each_server: dj.averaging.eager_outer(
            inner, each_server, period=period
        ),
        _in_step(dj.cluster.waits_for_all(1), slice_seconds, lag=1),
        server=server,
    )


def dasgd(
    period: int, delay: int, merge: str = "blended", share: float = 0.5
) -> Method:
    """Averages models; the mean arrives `delay` steps late. "blended" uses `share`.

    With the merge "corrected" it is LOSCAR.
    """
    merges = {
        "corrected": dj.averaging.corrected,
        "overwriting": dj.averaging.overwriting,
        "blended": dj.averaging.blended(share),
    }
    if merge not in merges:
        raise ValueError(f"`merge` must be among {', '.join(merges)}, got {merge!r}.")

    return Method(
        lambda inner, now, workers: dj.averaging.delayed_average(
            inner, delay, period=period, merge=merges[merge]
        ),
        _all_meet(period, delay),
    )


def dga(delay: int = 1) -> Method:
    """Averages the update of every step; the mean arrives `delay` steps late."""
    return Method(
        lambda inner, now, workers: dj.averaging.dga(inner, delay),
        _all_meet(1, delay),
    )


def d_psgd() -> Method:
    """Averages models with both neighbors on a ring, parallel to the gradient."""
    return Method(
        lambda inner, now, workers: dj.averaging.d_psgd(inner),
        _in_step(dj.cluster.waits_for_neighbors(1, -1), _messages(2), lag=1),
    )


def ad_psgd() -> Method:
    """Pairs of workers average their models, parallel to the gradient."""
    return Method(
        lambda inner, now, workers: dj.averaging.ad_psgd(inner, key=_key()),
        _in_step(
            dj.cluster.waits_for_neighbors(), _messages(1), lag=1, in_company=False
        ),
    )


def gossip(push: bool = False, period: int = 1) -> Method:
    """Averages each model with the model of a random worker."""
    apart = _every(period, dj.cluster.waits_for_neighbors())
    return Method(
        lambda inner, now, workers: dj.averaging.gossip(
            inner, key=_key(), push=push, period=period
        ),
        _in_step(apart, _messages(1), in_company=False),
    )


def sgp(peers: int = 1) -> Method:
    """Pushes shares of models along an exponential graph."""

    def times(cluster, steps, seed):
        hops = [2**k for k in range((cluster.workers - 1).bit_length())]
        rows = [[hops[(t + k) % len(hops)] for k in range(peers)] for t in range(steps)]

        def waits(step, workers):
            return dj.cluster.waits_for_neighbors(*rows[step])(step, workers)

        return _in_step(waits, _messages(peers))(cluster, steps, seed)

    return Method(
        lambda inner, now, workers: dj.averaging.sgp(inner, peers=peers), times
    )


def wagma(group_size: int | None = None, period: int = 11) -> Method:
    """Averages models in changing groups, without waiting for late workers."""

    def make(inner, now, workers):
        return dj.averaging.wagma(
            inner,
            group_size=group_size,
            period=period,
            lateness=lambda step: now.behind,
            max_lateness=max(period - 1, 1),
        )

    def times(cluster, steps, seed):
        workers = cluster.workers
        members = group_size or 2 ** math.ceil(math.log2(workers) / 2)
        seconds = cluster.step_seconds(steps, seed=seed)
        behind, on = dj.cluster.wait_avoiding(
            seconds,
            period=period,
            exchange_seconds=lambda step: _link(cluster).all_reduce_seconds(
                members if (step + 1) % period else workers
            ),
        )
        return timetable.together(seconds, on, behind=behind)

    return Method(make, times)


def sync_easgd(
    period: int = 1, moving_rate: float | None = None, momentum: float = 0.0
) -> Method:
    """Pulls all workers and the center towards each other at the same time."""
    return Method(
        lambda inner, now, workers: dj.averaging.easgd(
            _with_momentum(inner, momentum), moving_rate=moving_rate, period=period
        ),
        _all_meet(period),
        "center",
    )


def original_easgd(period: int = 1, moving_rate: float | None = None) -> Method:
    """Pulls the center and one worker after another towards each other, by rank."""
    return _elastic(period, moving_rate, 0.0, by_rank=True)


def async_easgd(period: int = 1, moving_rate: float | None = None) -> Method:
    """Pulls the center and each worker towards each other when the worker arrives."""
    return _elastic(period, moving_rate, 0.0)


def async_measgd(
    period: int = 1, moving_rate: float | None = None, momentum: float = 0.9
) -> Method:
    """`async_easgd` with momentum on the workers."""
    return _elastic(period, moving_rate, momentum)


def ea_wild(
    period: int = 1, moving_rate: float | None = None, momentum: float = 0.0
) -> Method:
    """`async_easgd` without a lock: Hogwild EASGD."""
    return _elastic(period, moving_rate, momentum, locked=False)


def async_sgd(period: int = 1) -> Method:
    """Pushes the updates of local steps to a center and pulls its model: DOWNPOUR."""
    return _pushing(period, 0.0)


def async_msgd(period: int = 1, momentum: float = 0.9) -> Method:
    """`async_sgd` with momentum at the center: MDOWNPOUR."""
    return _pushing(period, momentum)


def hogwild_sgd(period: int = 1) -> Method:
    """`async_sgd` without a lock."""
    return _pushing(period, 0.0, locked=False)


def _elastic(
    period: int,
    moving_rate: float | None,
    momentum: float,
    *,
    by_rank: bool = False,
    locked: bool = True,
) -> Method:
    def make(inner, now, workers):
        return dj.averaging.easgd(
            _if_there(_with_momentum(inner, momentum), now),
            moving_rate=moving_rate,
            period=period,
            order=lambda step: now.place,
            lock_free=None if locked else _races(workers),
        )

    return Method(make, _in_turn(period, by_rank, locked), "center")


def _pushing(period: int, momentum: float, *, locked: bool = True) -> Method:
    def make(inner, now, workers):
        return dj.averaging.downpour(
            _if_there(inner, now),
            period=period,
            server=optax.trace(momentum) if momentum else None,
            order=lambda step: now.place,
            lock_free=None if locked else _races(workers),
        )

    return Method(make, _in_turn(period, False, locked), "center")


def _key() -> jax.Array:
    """The pairs that meet are the same under all seeds.

    Otherwise every possible pair would be computed. What workers learn and when they
    end is drawn for each seed.
    """
    return jax.random.key(0)


def _races(workers: int) -> Any:
    """A worker reads each entry of the center up to P - 1 visits late."""
    return dj.averaging.races(_key(), workers - 1)


def _with_momentum(inner: Any, momentum: float) -> Any:
    return optax.chain(inner, optax.trace(momentum)) if momentum else inner


def _if_there(inner: Any, now: Now) -> Any:
    return dj.averaging.only_on_visit(inner, lambda step: now.place)


def _in_step(
    waits: Any, exchange: Any, *, lag: int = 0, in_company: bool = True
) -> Callable:
    """Timetables of equal steps; if not `in_company`, workers must be equally fast."""

    def times(cluster, steps, seed):
        if not in_company and len({speed.factors for speed in cluster.speeds()}) > 1:
            raise ValueError(
                "its workers take their steps together but never wait, so they must be"
                " equally fast: take a cluster without `slowdown`, or a method with a"
                " center, as async_easgd."
            )
        seconds = cluster.step_seconds(steps, seed=seed)
        on = dj.cluster.finish_times(
            seconds,
            waits,
            lag=lag,
            exchange_seconds=exchange(_link(cluster), cluster.workers),
        )
        return timetable.together(seconds, on)

    return times


def _all_meet(period: int = 1, lag: int = 0) -> Callable:
    """Timetables of workers that wait for all every `period` steps."""
    all_reduce = dj.cluster.Communication.all_reduce_seconds
    return _in_step(dj.cluster.waits_for_all(period), all_reduce, lag=lag)


def _in_turn(period: int, by_rank: bool, locked: bool) -> Callable:
    def times(cluster, steps, seed):
        link = _link(cluster)
        # without a lock the center serves all workers at the same time
        link = dataclasses.replace(link, serial=link.serial and locked)
        return timetable.in_turn(
            dataclasses.replace(cluster, communication=link),
            steps,
            seed=seed,
            period=period,
            by_rank=by_rank,
        )

    return times


def _every(period: int, waits: Any) -> Any:
    def due(step, workers):
        return waits(step, workers) & ((step + 1) % period == 0)

    return due


def _messages(count: int) -> Callable:
    """Seconds to send so many models at once over the one link of a worker."""
    return lambda link, workers: link.latency_seconds + count * link.transfer_seconds


def _link(cluster: dj.cluster.Cluster) -> dj.cluster.Communication:
    return cluster.communication or dj.cluster.Communication()
