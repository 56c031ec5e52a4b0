"""Training along the trace of a cluster, simulated or recorded."""

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from experiments.tasks.task import Task
from experiments.training.axis_values import is_whole
from experiments.training.jobs import (
    NONE,
    REFUSED,
    Job,
    Model,
    Needs,
    Request,
    Room,
    Update,
    axes_of,
    called,
    data_seed,
    loss_and_gradients,
    of_seeds,
)


@dataclasses.dataclass(frozen=True)
class Simulation:
    """A cluster and a protocol, simulated anew under every seed.

    Attributes:
        cluster: the cluster whose workers deliver gradients.
        protocol: what the server does with these gradients.
        may_hang: whether a simulation may end early because every worker hangs and the
            protocol waits for ever; without it that is an error.
    """

    cluster: dj.cluster.Cluster
    protocol: Callable[..., Any]
    may_hang: bool = False

    @property
    def num_workers(self) -> int:
        """P, as of a trace."""
        return self.cluster.workers

    def trace(self, seed: int, updates: int | None, seconds: float) -> Any:
        """The trace of the cluster under a seed."""
        if self.may_hang:  # if the time is finite, a cluster that hangs is no error
            seconds = min(seconds, sys.float_info.max)
        return dj.cluster.simulate(
            self.cluster,
            self.protocol,
            updates,
            seed=data_seed(seed),
            seconds=seconds,
        )


@dataclasses.dataclass(frozen=True)
class _Along:
    source: Any  # one source, or {name: source}
    make: Callable[..., optax.GradientTransformation]
    options: dict[str, Any]
    client: Any = None
    client_steps: int | Sequence[int] = 1
    output: Callable[[Any, Any], Any] | None = None

    @property
    def fed(self):
        """{axis that changes only the data of an update: the names of its values}."""
        return {"cluster": (*self.source,)} if isinstance(self.source, Mapping) else {}

    def arguments(self):
        chosen = dict.fromkeys(self.fed, True)
        return axes_of(self.make, self.options["each"], self.client) | chosen

    def job(self, task: Task, request: Request) -> Job:
        return _job(self, task, request)

    def source_of(self, request: Request) -> Any:
        if not self.fed:
            return self.source
        number, count = request.fed["cluster"], len(self.source)
        if not (is_whole(number) and 0 <= number < count):
            raise ValueError(
                f"`grid['cluster']` must be numbers of the {count} sources, 0 to"
                f" {count - 1}, got {number!r}."
            )
        return list(self.source.values())[number]


def along(
    source: Simulation | dj.cluster.Trace | Mapping[str, Any],
    make: Callable[..., optax.GradientTransformation] | optax.GradientTransformation,
    *,
    each: Any = None,
    aggregation: Any = None,
    read_spread: float = 0.0,
    client: Any = None,
    client_steps: int | Sequence[int] = 1,
    output: Callable[[Any, Any], Any] | None = None,
) -> Any:
    """Trains along a trace with `dj.replay`: each gradient is used when it arrives.

    Args:
        source: `Simulation(cluster, protocol)`, or a trace, which all seeds follow. Or
            several sources, {name: source}: the grid's axis `cluster`, `{name:
            number}`, selects one by its number, and functions of grid axes may take
            this axis. All sources share one compiled program.
        make: grid axes -> the server's optimizer.
        each: a transformation of every gradient, or a function of grid axes that makes
            one; see `dj.replay`.
        aggregation: as in `dj.replay`.
        read_spread: as in `dj.replay`.
        client: the optimizer of federated clients, or a function of grid axes that
            makes one: each client trains on its batch and sends its movement; see
            `dj.local_training`. With None workers send gradients.
        client_steps: the steps of a client, each on an equal part of its batch. Or the
            number of each worker, for steps by speed: a batch has a part for each of
            the most steps, and a client with fewer steps trains on the first parts.
            Only these count as its examples.
        output: (parameters, optimizer state) -> the parameters to evaluate, for example
            an average; by default the parameters.
    """
    options = dict(each=each, aggregation=aggregation, read_spread=read_spread)
    if client is None and client_steps != 1:
        raise ValueError(
            f"`client_steps` needs a `client`, got {client_steps}: give its optimizer."
        )
    numbers = np.ravel(client_steps).tolist()
    if not numbers or not all(is_whole(each) and each >= 1 for each in numbers):
        raise ValueError(
            "`client_steps` must be a number of steps, at least 1, or a sequence with"
            f" one for each worker, got {client_steps!r}."
        )
    return _Along(source, make, options, client, client_steps, output)


@dataclasses.dataclass(frozen=True, eq=False)
class Traces:
    """One trace per seed, and the part of it that a run follows.

    Attributes:
        traces: the trace of each seed.
        ends: the number of updates of each seed.
        evaluate_every: the number of updates between evaluations.
        examples_each: the examples of a gradient, or of a gradient of each worker.
        seeds: the numbers of the seeds.
        room: the room of the compiled program.
    """

    traces: tuple[dj.cluster.Trace, ...]
    ends: tuple[int, ...]
    evaluate_every: int
    examples_each: np.ndarray  # int64 [] or [P]
    seeds: tuple[int, ...]
    room: Room

    @classmethod
    def simulate(
        cls,
        source: Any,
        task: Task,
        request: Request,
        *,
        together: bool = False,
        spread: bool = False,
        steps: int | Sequence[int] = 1,
    ) -> "Traces":
        """Simulates the traces of a source until the end that the request gives.

        Args:
            source: a trace, or an object with `trace`.
            task: the task to train.
            request: the end of the run, and its seeds.
            together: whether all seeds end with the seed that has the fewest updates.
            spread: whether a gradient reads several versions.
            steps: the steps of a client, or of the client of each worker; the client
                with the most steps uses all examples of a batch.

        Raises:
            ValueError: if a seed has no update before the end.
        """
        if np.ndim(steps) and task.examples is None:
            raise ValueError(
                "`client_steps` of each worker needs a task with `examples`, of which"
                " each worker uses a share."
            )
        each = np.asarray(steps) * request.examples_each(task) // np.max(steps)
        if isinstance(source, dj.cluster.Trace):
            if source.num_updates < (request.updates or 0):
                raise ValueError(
                    f"`updates` must be at most {source.num_updates}, the updates of"
                    f" the trace, got {request.updates}: simulate or log more."
                )
            ends = [_fitting(source, request, each)] * len(request.seeds)
        elif request.updates is not None:
            ends = [request.updates] * len(request.seeds)
        else:
            ends = [_within(source, seed, request, each) for seed in request.seeds]
        if min(ends) == 0:
            seed = request.seeds[ends.index(0)]
            _check_hanging(source, seed, request)
            is_trace = isinstance(source, dj.cluster.Trace)
            first = source if is_trace else source.trace(seed, 1, math.inf)
            request.check_examples(_examples(first, each)[first.counts[0]])
            raise ValueError(
                f"`seconds` must be at least {first.seconds[0]}, the time of the"
                f" first update under seed {seed}, got {request.seconds}: raise it."
            )
        if together:
            ends = [min(ends)] * len(ends)
        if isinstance(source, dj.cluster.Trace):
            traces = [source] * len(request.seeds)
        else:
            pairs = zip(request.seeds, ends, strict=True)
            traces = [source.trace(seed, end, math.inf) for seed, end in pairs]
        every = request.cadence(max(ends))
        room = request.room
        for trace in traces:
            room = room.with_room_for(Room(_needs(trace, spread), (trace,)))
        ends = tuple(ends)
        return cls(tuple(traces), ends, every, each, request.seeds, room)

    @property
    def updates(self) -> int:
        """The updates of the seed that has the most."""
        return max(self.ends)

    @property
    def width(self) -> int:
        """K, the most gradients of an update."""
        return self.room.needs.gradients

    def arrivals(self, start: int, stop: int) -> Any:
        """The arrivals of updates start .. stop - 1: [n, seeds, K]; divisor [n, seeds].

        After the end of a seed its updates have no gradient.
        """
        rows = []
        for trace, end in zip(self.traces, self.ends, strict=True):
            last = min(stop, end)
            there = trace.arrivals(min(start, last), last, width=self.width)
            ended = stop - max(start, end)
            if ended > 0:
                empty = there._replace(
                    staleness=-1, worker=-1, divisor=1.0, slot=0, written=0
                )
                there = jax.tree.map(functools.partial(_followed, ended), there, empty)
            rows.append(there)
        return of_seeds(rows)

    def seconds(self, step: int) -> np.ndarray:
        """The time after `step` updates, at most those of a seed, float64 [seeds]."""
        both = zip(self.traces, self.ends, strict=True)
        return np.asarray(
            [trace.seconds[min(step, end) - 1] if step else 0.0 for trace, end in both]
        )

    def gradients(self, step: int) -> np.ndarray:
        """The number of gradients in the first `step` updates, int64 [seeds]."""
        both = zip(self.traces, self.ends, strict=True)
        places = [np.searchsorted(trace.update, min(step, end)) for trace, end in both]
        return np.asarray(places, np.int64)

    def examples(self, step: int) -> np.ndarray:
        """The number of examples in the first `step` updates, int64 [seeds]."""
        both = zip(self.traces, self.gradients(step), strict=True)
        each = self.examples_each
        return np.asarray([_examples(trace, each)[n] for trace, n in both])

    def dropped(self, step: int) -> np.ndarray:
        """The refused share of the gradients that arrived until then, [seeds]."""
        both = zip(self.traces, self.ends, strict=True)
        dropped = [
            (trace.dropped.version < min(step, end)).sum() for trace, end in both
        ]
        return dropped / np.maximum(dropped + self.gradients(step), 1)

    def of_rule(self) -> dict[str, Any]:
        """The fields of a `Job` that follow from traces."""
        return dict(
            updates=self.updates,
            evaluate_every=self.evaluate_every,
            depth=lambda memory: self.room.needs.staleness,
            seconds=self.seconds,
            examples=self.examples,
            dropped=self.dropped,
            traces=self.traces,
            room=self.room,
        )


def _needs(trace: dj.cluster.Trace, spread: bool) -> Needs:
    """The needs of a trace; with a spread, a gradient may read any version."""
    width = max(1, trace.max_gradients)
    first = np.searchsorted(trace.update, trace.update)
    apart = (trace.read_version != trace.read_version[first]).any()
    return Needs(
        staleness=trace.max_staleness,
        versions=trace.max_staleness + 1 if spread else trace.max_versions,
        gradients=width,
        uneven=bool((trace.counts != width).any()),
        divided=bool((trace.divisor != width).any()),
        apart=bool(apart),
        empty=bool((trace.counts == 0).any()),
    )


def _followed(more: int, rows: np.ndarray, empty: float) -> np.ndarray:
    """A column of arrivals, followed by rows of updates without a gradient."""
    return np.concatenate([rows, np.full((more, *rows.shape[1:]), empty, rows.dtype)])


def _job(training: _Along, task: Task, request: Request) -> Job:
    source, spread = training.source_of(request), training.options["read_spread"] > 0
    steps = training.client_steps
    if np.ndim(steps) and np.shape(steps) != (source.num_workers,):
        raise ValueError(
            "`client_steps` must be one number, or one for each of the"
            f" {source.num_workers} workers, got {steps!r}."
        )
    traces = Traces.simulate(source, task, request, spread=spread, steps=steps)

    def grad_fn(params, batch, key, *state):
        model = Model(params, *state)
        loss, grads, after = loss_and_gradients(task, model, batch, key)
        return ((loss, after), grads) if task.has_state else (loss, grads)

    def replay(key, hyper):
        options = dict(training.options)
        options["each"] = called(options["each"], hyper, key)
        make = called(training.make, hyper, key)
        take = grad_fn
        if training.client is not None:
            client = called(training.client, hyper, key)
            take = dj.local_training(grad_fn, client, int(np.max(steps)))
        versions = traces.room.needs.versions
        return dj.replay(
            traces.room.traces, take, make, max_versions=versions, **options
        )

    # the model is kept apart, because the model of a diverged cell is masked; the key
    # is fixed
    def kept(state):
        if task.has_state:
            state = state._replace(model_state=())
        return state._replace(params=None, key=None)

    def init(key, hyper, model):
        options = {"model_state": model.state} if task.has_state else {}
        if np.ndim(steps):
            options["worker_state"] = {"steps": jnp.asarray(steps, jnp.int32)}
        state = replay(key, hyper).init(model.params, key, **options)
        return model, kept(state)

    def update(key, hyper, step, model, memory, given):
        state = memory._replace(params=model.params, key=key)
        if task.has_state:
            state = state._replace(model_state=model.state)
        state, report = replay(key, hyper).step(state, given)
        after = Model(state.params, state.model_state if task.has_state else ())
        there = given[0].staleness >= 0
        if request.updates is None:  # a seed that has ended keeps its model
            after = optax.tree.where(there.any(), after, model)
        refused = jnp.where(there, REFUSED, NONE)
        ages = jnp.where(report.ages >= 0, report.ages, refused)
        return Update(after, kept(state), report.metrics, report.staleness, ages)

    def given(start, stop, here=None):
        """Gradient g of a seed, in the order of the trace, is taken on its batch g."""
        arrivals = traces.arrivals(start, stop)
        firsts, lasts = traces.gradients(start), traces.gradients(stop)
        batches = []
        for s, seed in enumerate(traces.seeds):
            there = arrivals.staleness[:, s] >= 0
            # a seed that has ended draws its last batch but does not use it
            first = min(int(firsts[s]), len(traces.traces[s].update) - 1)
            last = max(int(lasts[s]), first + 1)
            if task.batches_of is None:
                drawn = task.batches(data_seed(seed), first, last)
            else:
                whose = traces.traces[s].worker[first:last]
                drawn = task.batches_of(data_seed(seed), first, whose)
            batches.append(jax.tree.map(lambda x, there=there: into(x, there), drawn))
        return arrivals, of_seeds(batches)

    def evaluated(model, memory):
        if training.output is None:
            return model

        def of_cell(params, memory):
            return training.output(params, memory.opt_state)

        axes = 0, dj.ring.vmap_axes(memory)
        params = jax.vmap(jax.vmap(of_cell, axes), axes)(model.params, memory)
        return model._replace(params=params)

    return Job(
        init=init,
        update=update,
        given=given,
        model=evaluated,
        ends=traces.ends,
        **traces.of_rule(),
    )


def into(batches: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Puts batches in the places [n, K] of their gradients; other places are zero."""
    placed = np.zeros((*there.shape, *batches.shape[1:]), batches.dtype)
    placed[there] = batches[: there.sum()]
    return placed


_MOST = 2**22  # the updates after which a run counts as endless


def _examples(trace: dj.cluster.Trace, each: np.ndarray) -> np.ndarray:
    """The examples in the first n gradients of a trace, int64 [gradients + 1]."""
    of_workers = np.broadcast_to(each, trace.num_workers)
    return np.append(0, np.cumsum(of_workers[trace.worker]))


def _fitting(trace: dj.cluster.Trace, request: Request, each: np.ndarray) -> int:
    """The number of updates of a trace before the end of a request."""
    fitting = trace.num_updates
    if request.updates is not None:
        fitting = min(fitting, request.updates)
    if request.seconds is not None:
        fitting = min(
            fitting, np.searchsorted(trace.seconds, request.seconds, side="right")
        )
    if request.examples is not None:
        examples = _examples(trace, each)[np.cumsum(trace.counts)]
        fitting = min(fitting, np.searchsorted(examples, request.examples, "right"))
    return int(fitting)


def _check_hanging(source: Any, seed: int, request: Request) -> None:
    """Raises if a simulation has no update because all of its workers hang."""
    if getattr(source, "may_hang", False):
        seconds = 100 * (request.seconds or math.inf)
        if not source.trace(seed, 1, seconds).num_updates:
            raise ValueError(
                f"Under seed {seed} all workers hang before the first update: give the"
                " cluster more workers, or lower the probability that a task hangs."
            )


def _within(source: Simulation, seed: int, request: Request, each: np.ndarray) -> int:
    """The number of updates before the end, from simulations of growing length."""
    updates, seconds = 64, request.seconds or math.inf
    examples = request.examples or math.inf
    while updates <= _MOST:
        trace = source.trace(seed, updates, seconds)
        fitting = _fitting(trace, request, each)
        if fitting < updates:
            return fitting
        used = trace.seconds[-1] / seconds
        used = max(used, _examples(trace, each)[-1] / examples)
        updates = max(2 * updates, math.ceil(1.1 * updates / max(used, 1e-6)))
    raise ValueError(
        f"The run is not finished after {_MOST:,} updates: lower the experiment's"
        " `seconds` or `examples`."
    )
