"""The checks of `delayjax.testing` fail if a method breaks its contract.

Each mutant below breaks one promise; the report must show it in the row of that one.
"""

import functools
import itertools
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import testing
from delayjax._src.testing import protocol, replicas, transformation
from delayjax._src.testing.command import main
from delayjax._src.testing.report import report_on
from delayjax.cluster import protocols
from tests.cluster.wrong import (
    backwards,
    deaf,
    moody,
    only_two,
    returns,
    stops,
    twice,
    undecided,
)

PARAMS = {
    "layer": {"w": jnp.ones((4, 2)), "b": jnp.ones(4, jnp.bfloat16)},
    "head": jnp.ones(3),
}


class State(NamedTuple):
    mean: Any  # the mean staleness
    last: Any  # the last gradient


def fading(
    *,
    begin=lambda params: jnp.zeros(()),
    zeros=lambda params: jax.tree.map(jnp.zeros_like, params),
    mean=lambda mean, staleness: 0.5 * mean + 0.5 * staleness,
    weigh=lambda u, factor: (u * factor).astype(u.dtype),
    keep=lambda grads: jax.tree.map(jnp.copy, grads),
    finish=dj.extend.vary_as,
    more=lambda extra_args: 0.0,
):
    """A correct rule; each of its parts may be replaced by a wrong one."""

    def init_fn(params):
        return finish(params, State(begin(params), zeros(params)))

    def update_fn(updates, state, params=None, *, staleness=0, **extra_args):
        factor = 1.0 / (1.0 + state.mean) + more(extra_args)
        moves = jax.tree.map(lambda u, v: weigh(u + v, factor), updates, state.last)
        return moves, State(mean(state.mean, staleness), keep(updates))

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def twin(params, state):
    """Makes a state that has the same array in two places."""
    return dj.extend.vary_as(params, (state, state))


def with_twins():
    tx = fading()

    def update_fn(updates, state, params=None, **extra_args):
        updates, new = tx.update(updates, state[0], params, **extra_args)
        return updates, (new, jax.tree.map(jnp.copy, new))

    init_fn = fading(finish=twin).init
    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def with_a_clock_outside():
    clock = itertools.count(1)
    return fading(mean=lambda mean, staleness: mean + next(clock))


def grown():
    """Its state changes its structure in the first step, as that of `optax.monitor`."""

    def update_fn(updates, state, params=None, **extra_args):
        return updates, {"seen": jnp.ones(())}

    return optax.GradientTransformationExtraArgs(lambda params: {}, update_fn)


def without_extra_args():
    def update_fn(updates, state, params=None, *, staleness):
        return jax.tree.map(
            lambda u: u / (1 + staleness).astype(u.dtype), updates
        ), state

    return optax.GradientTransformationExtraArgs(
        lambda p: optax.EmptyState(), update_fn
    )


def named():
    """The state has a string as a leaf."""
    return optax.GradientTransformationExtraArgs(
        lambda params: {"name": "mine"},
        lambda u, state, params=None, **extra: (u, state),
    )


def by_callback(u, factor):
    """Calls the host; `vmap` cannot do so."""
    return jax.pure_callback(lambda u: u, jax.ShapeDtypeStruct(u.shape, u.dtype), u)


def where_it_runs(u, factor):
    is_run = bool(jax.sharding.get_abstract_mesh().manual_axes)
    return (u * (factor + is_run)).astype(u.dtype)


def by_age(law):
    """Weights each gradient by a function of its staleness alone."""

    def update_fn(updates, state, params=None, *, staleness=1, **extra_args):
        weight = law(staleness)
        return jax.tree.map(lambda u: (u * weight).astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(), update_fn
    )


def without_a_mean(staleness):
    if not jnp.issubdtype(jnp.result_type(staleness), jnp.integer):
        raise TypeError(f"`staleness` must be an integer, got {staleness}.")
    return jnp.array([1.0, 0.5, 0.25])[staleness]


def averaged_where_it_can(u, factor):
    try:
        return jax.lax.pmean(u, "workers")
    except NameError:
        return u


def bare(params):
    """Zeros without the sharding of the parameters."""
    return jax.tree.map(lambda p: jnp.zeros(p.shape, p.dtype), params)


# the last four are bound before a check begins, as by `from jax import device_count`
COUNTS = {
    "jax.devices": lambda: len(jax.devices()),
    "jax.local_devices": lambda: len(jax.local_devices()),
    "the name of a backend": lambda: len(jax.devices("cpu")),
    "a compiled function": jax.jit(lambda: jax.device_count() + jnp.zeros(())),
    "device_count": jax.device_count,
    "local_device_count": jax.local_device_count,
    "devices": lambda devices=jax.devices: len(devices()),
    "local_devices": lambda devices=jax.local_devices: len(devices()),
}


# name: (transformation, the promise that it breaks, a part of the sentence)
MUTANTS = {
    "raises": (
        lambda: fading(mean=lambda mean, staleness: mean.total),
        *("a step runs", "AttributeError"),
    ),
    "divides by zero": (
        lambda: fading(weigh=lambda u, factor: (0 * u / 0).astype(u.dtype)),
        *("a step runs", "is NaN"),
    ),
    "narrows a leaf of its state": (
        lambda: fading(mean=lambda mean, staleness: mean.astype(jnp.bfloat16)),
        *("types stay", r"`state\.mean` is float32\[\] at first, and bfloat16"),
    ),
    "begins with a weak type": (
        lambda: fading(
            begin=lambda params: jnp.asarray(0.0),
            mean=lambda mean, staleness: mean + jnp.float32(0.5),
        ),
        *("types stay", r"`state\.mean` is float32\[\], weakly typed at first"),
    ),
    "is infinite for a fresh gradient": (
        lambda: by_age(lambda staleness: 1.0 / staleness),
        *("a step runs", r"`params.*` is -?inf after 1 steps"),
    ),
    "is no number from 3 on": (
        lambda: by_age(lambda staleness: jnp.sqrt(2.5 - staleness)),
        *("a step runs", r"`params.*` is NaN after 2 steps"),
    ),
    "is infinite at its seventh step": (
        lambda: fading(
            begin=lambda params: jnp.float32(-7.0),
            mean=lambda mean, staleness: mean + 1.0,
        ),
        *("a step runs", r"`params.*` is -?inf after 7 steps"),
    ),
    "is no number from 12 on": (
        lambda: by_age(lambda staleness: jnp.sqrt(11.0 - staleness)),
        *("any staleness", r"`updates.*` is NaN at a staleness of 12"),
    ),
    "is infinite between 10 and 11": (
        lambda: by_age(lambda staleness: 1.0 / (staleness - 10.5)),
        *("any staleness", r"`updates.*` is -?inf at a staleness of 10\.5"),
    ),
    "has a table by staleness": (
        lambda: by_age(lambda staleness: jnp.array([1.0, 0.5, 0.25])[staleness]),
        *("any staleness", "a mean staleness, a float, ends in TypeError"),
    ),
    "keeps the last staleness": (
        lambda: fading(
            begin=lambda params: jnp.zeros((), jnp.int32),
            mean=lambda mean, staleness: staleness,
        ),
        *("any staleness", r"`state.*mean` is int32\[\] of an integer staleness"),
    ),
    "counts devices": (
        lambda: fading(
            weigh=lambda u, factor: (u * factor / jax.local_device_count()).astype(
                u.dtype
            )
        ),
        *("devices are not counted", "the number of devices changes the operations"),
    ),
    **{
        f"counts devices by {name}": (
            lambda count=count: by_age(lambda staleness: 1.0 / count()),
            *("devices are not counted", "the number of devices changes the operatio"),
        )
        for name, count in COUNTS.items()
    },
    "begins with the number of devices": (
        lambda: fading(begin=lambda params: jnp.zeros(()) + jax.device_count()),
        *("devices are not counted", "the number of devices changes the operations"),
    ),
    "averages where it can": (
        lambda: fading(weigh=averaged_where_it_can),
        *("a worker is the rule alone", "a worker and the rule alone differ"),
    ),
    "widens its updates": (
        lambda: fading(weigh=lambda u, factor: u * factor),
        *("types stay", r"`updates\['layer'\]\['b'\]` is bfloat16\[4\]"),
    ),
    "grows": (grown, "types stay", r"`state\['seen'\]` is new after a step"),
    "grows in a scan": (grown, "scan is the loop", "carry"),
    "keeps a string": (named, "a step runs", r"`state\['name'\]` is a str, no array"),
    "begins with values": (
        lambda: fading(
            begin=lambda params: jnp.float32(np.asarray(params["head"]).sum())
        ),
        *("init from shapes", "Error"),
    ),
    "begins with Python numbers of shapes": (
        lambda: fading(begin=lambda params: float(jnp.sum(params["head"]))),
        *("init from shapes", "Error"),
    ),
    "branches on its state": (
        lambda: fading(
            mean=lambda mean, staleness: mean + 1.0 if mean > 1 else mean + 0.5
        ),
        *("jit is eager", "TracerBoolConversionError"),
    ),
    "branches on the staleness": (
        lambda: fading(
            mean=lambda mean, staleness: mean + (1.0 if staleness > 1 else 0.5)
        ),
        *("jit is eager", "TracerBoolConversionError"),
    ),
    "goes by the host": (
        lambda: fading(weigh=lambda u, factor: jnp.asarray(np.asarray(u))),
        *("jit is eager", "TracerArrayConversionError"),
    ),
    "counts outside of its state": (
        with_a_clock_outside,
        *("jit is eager", r"eager and compiled steps differ at \[1\]\.mean"),
    ),
    "counts on after it was restored": (
        with_a_clock_outside,
        *("a checkpoint goes on", "saved and restored differ"),
    ),
    "has no rule for vmap": (
        lambda: fading(weigh=by_callback),
        *("vmap is each alone", "vmap"),
    ),
    "keeps the parameters": (
        lambda: fading(zeros=lambda params: params),
        *(
            "buffers are distinct",
            r"`params\['head'\]` and `state\.last\['head'\]` share",
        ),
    ),
    "keeps the gradients": (
        lambda: fading(keep=lambda grads: grads),
        *("buffers are distinct", r"`gradients.*` and `state.*` share .* after a step"),
    ),
    "begins with one array twice": (
        with_twins,
        *("buffers are distinct", r"`state\[0\]\.mean` and `state\[1\]\.mean` share"),
    ),
    "takes no other extra arguments": (
        without_extra_args,
        *("unknown extra arguments", "refuses arguments"),
    ),
    "counts its extra arguments": (
        lambda: fading(more=lambda extra_args: 0.1 * len(extra_args)),
        *("unknown extra arguments", "changes the operations"),
    ),
    "forgets the workers": (
        lambda: fading(finish=lambda params, state: state),
        *("workers' types", r"`state\.mean` is float32\[\] at first, and .*workers"),
    ),
    "loses the sharding": (
        lambda: fading(zeros=bare),
        *("sharded, Auto axes", r"has \[4\] of its \[4\] on a device, but the param"),
    ),
    "loses the sharding of the type": (
        lambda: fading(zeros=bare),
        *("sharded, Explicit axes", r"`state\.last\['layer'\]\['b'\]` is bfloat16"),
    ),
    "looks where it runs": (
        lambda: fading(weigh=where_it_runs),
        *("run is simulate", "workers.simulate and workers.run differ"),
    ),
}
ON_DEVICES = "sharded, Auto axes", "sharded, Explicit axes", "run is simulate"
ONE = jax.devices()[:1]


def assert_found(check, promise, sentence, monkeypatch):
    """The row of a promise fails with this sentence; the other rows are left out."""

    def of_one(of, promises, remedies):
        kept = {next(iter(promises)), promise}
        return report_on(of, {x: promises[x] for x in promises if x in kept}, remedies)

    for module in (transformation, replicas, protocol):
        monkeypatch.setattr(module, "report_on", of_one)
    report = check()
    row = report.row(promise)
    assert row.verdict == "fails", str(report)
    assert re.search(sentence, row.reason) and row.remedy, str(report)
    with pytest.raises(AssertionError, match=f"{promise}: "):
        report.require()


def test_a_sound_rule_keeps_all_promises():
    report = testing.check(fading(), PARAMS)
    report.require()
    assert {row.verdict for row in report.rows} == {"holds"}
    assert {promise for _, promise, _ in MUTANTS.values()} == {
        row.promise for row in report.rows
    }


def test_a_check_leaves_the_devices_as_they_are():
    def answers():
        counts = jax.device_count(), jax.local_device_count()
        return jax.devices(), jax.local_devices(), *counts

    before = answers()

    def on_a_device(u, factor):
        with jax.ensure_compile_time_eval():  # an operation that runs while tracing
            two = jax.device_put(jnp.ones(2), jax.devices()[0]).sum()
        return (u * two).astype(u.dtype)

    testing.check(fading(weigh=on_a_device), PARAMS, devices=ONE).require()
    assert answers() == before


def test_a_rule_may_refuse_a_mean_staleness_by_its_name():
    report = testing.check(by_age(without_a_mean), PARAMS, devices=ONE)
    assert report.row("any staleness").verdict == "holds"


def test_a_rule_that_is_told_no_staleness_is_asked_for_none():
    report = testing.check(
        optax.sgd(0.1), PARAMS, devices=ONE, extra_args=lambda step, params: {}
    )
    assert report.row("any staleness").reason == "no staleness is handed on"


# exchanges


def exchanged(mean):
    """Updates by the mean of the gradients of the workers."""

    def update_fn(updates, state, params=None, **extra_args):
        return jax.tree.map(mean, updates), state

    return optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(), update_fn
    )


def of_all_but_2(u):
    is_heard = jax.lax.axis_index("workers") != 2
    return jax.lax.psum(jnp.where(is_heard, u, 0), "workers") / 3


EXCHANGES = {
    "sums over the devices that are here": (
        lambda u: jax.lax.psum(u, "workers") / jax.local_device_count(),
        *("devices are not counted", "the number of devices changes the operations"),
    ),
    "does not hear worker 2": (
        of_all_but_2,
        *("each gradient counts", "the gradients of worker 2 change no parameter"),
    ),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_wrong_exchange_is_found_in_the_row_of_its_promise(name, monkeypatch):
    mean, promise, sentence = EXCHANGES[name]
    check = functools.partial(
        testing.check, exchanged(mean), jnp.ones(3), axis_name="workers"
    )
    assert_found(check, promise, sentence, monkeypatch)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found_in_the_row_of_its_promise(name, monkeypatch):
    make, promise, sentence = MUTANTS[name]
    check = functools.partial(testing.check, make(), PARAMS)
    assert_found(check, promise, sentence, monkeypatch)


def test_a_report_names_the_factory_of_a_rule_with_a_state():
    assert transformation.name_of(dj.delayed(optax.sgd(0.1), 1)) == "delayed"
    assert transformation.name_of(fading()) == "fading"


def test_what_needs_devices_is_not_checked_on_one():
    report = testing.check(fading(), PARAMS, devices=ONE)
    unchecked = [row.promise for row in report.rows if row.verdict == "not checked"]
    assert unchecked == [*ON_DEVICES]
    report.require()
    lines = str(report).splitlines()
    assert lines[0] == "fading: 13 promises hold, 0 fail, 3 not checked"
    assert lines[-2].endswith(
        "run is simulate: 4 workers need as many devices, here is 1"
    )
    with pytest.raises(ValueError, match=r"`promise` must be one of \['a step runs'"):
        report.row("everything")


def test_where_no_step_runs_nothing_else_is_checked():
    report = testing.check(MUTANTS["raises"][0](), PARAMS)
    assert {row.verdict for row in report.rows[1:]} == {"not checked"}
    assert report.rows[1].reason == "first mend: a step runs"


def test_shapes_and_one_array_and_an_empty_tree_are_parameters_too():
    for params in (jax.ShapeDtypeStruct((3,), jnp.float32), jnp.float32(1), {}):
        testing.check(optax.adam(0.1), params, devices=ONE).require()


# averaging methods


def left(model):
    workers = jax.lax.axis_size("workers")
    pairs = [(i, (i + 1) % workers) for i in range(workers)]
    return jax.lax.ppermute(model, "workers", pairs)


def halves(a, b):
    return jax.tree.map(lambda x, y: (x + y) / 2, a, b)


def of_first(model):
    """All workers get the model of worker 0."""
    return jax.tree.map(lambda x: jax.lax.all_gather(x, "workers")[0], model)


def every(period, mix, *, late=0):
    """A correct method, if `mix` is correct."""

    def mixed(step, memory, before, model):
        due = (step + 1 + late) % period == 0
        return optax.tree.where(due, mix(model), model), memory

    return lambda inner: dj.extend.averaged(inner, mixed)


def with_memory(after):
    """The memory is the first model, and later `after` of it."""

    def mixed(step, memory, before, model):
        return halves(left(model), model), after(memory)

    return lambda inner: dj.extend.averaged(inner, mixed, begin=lambda params: params)


def of_mean_gradients(inner):
    """Averages gradients, so that all models are equal."""

    def update_fn(updates, state, params=None, **extra_args):
        mean = jax.lax.pmean(updates, "workers")
        updates, state = inner.update(mean, state, params, **extra_args)
        return dj.workers.vary(updates), state

    def init_fn(params):
        return inner.init(dj.workers.vary(params))

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def only_sent_when_due():
    """A `cond` whose branches have different types: no `workers.vary` of the mean."""

    def mixed(step, memory, before, model):
        def mean(model):
            return jax.lax.pmean(model, "workers")

        due = (step + 1) % 2 == 0
        return jax.lax.cond(due, mean, lambda model: model, model), memory

    return lambda inner: dj.extend.averaged(inner, mixed)


def from_right_on_devices(model):
    if jax.sharding.get_abstract_mesh().manual_axes:
        return of_first(model)
    return halves(left(model), model)


def without_the_step_of_2(mix):
    """Worker 2 loses its local step; `mix` combines the model before and a mean."""

    def mixed(step, memory, before, model):
        is_2 = jax.lax.axis_index("workers") == 2
        model = optax.tree.where(is_2, before, model)
        mean = halves(left(model), model)
        return optax.tree.where(is_2, mix(before, mean), mean), memory

    return lambda inner: dj.extend.averaged(inner, mixed)


AVERAGING = {
    "never moves worker 2": (
        without_the_step_of_2(lambda before, mean: before),
        *("each worker learns", "of worker 2 does not move from its start"),
    ),
    "drags worker 2 behind the others": (
        without_the_step_of_2(lambda before, mean: mean),
        *("each worker learns", "the model of worker 2 is the same for other"),
    ),
    "branches of two types": (
        only_sent_when_due(),
        *("workers' types", "cond"),
    ),
    "a memory that changes its type": (
        with_memory(lambda memory: optax.tree.cast(memory, jnp.bfloat16)),
        *("a step runs", "`mix` must return a memory like the given memory"),
    ),
    "everybody takes the model of one": (
        every(2, of_first),
        *("the mean is conserved", "step 1 moves the mean of the models"),
    ),
    "always": (
        every(1, lambda model: halves(left(model), model)),
        *(
            "the period is kept",
            r"mixed at steps \[0, 1, 2, .*, 8\], with a period of 2",
        ),
    ),
    "never": (
        every(2, lambda model: model),
        *("the period is kept", "no step of 9 mixes the models"),
    ),
    "means of gradients": (
        of_mean_gradients,
        *("each worker learns", "is the same on all workers"),
    ),
    "looks where it runs": (
        every(2, from_right_on_devices),
        *("run is simulate", "differ"),
    ),
}


@pytest.mark.parametrize("name", AVERAGING)
def test_a_wrong_average_is_found_in_the_row_of_its_promise(name, monkeypatch):
    make, promise, sentence = AVERAGING[name]
    check = functools.partial(
        testing.check_averaging, make, period=2, conserves_mean=True
    )
    assert_found(check, promise, sentence, monkeypatch)


def test_what_a_method_does_not_claim_is_not_checked():
    report = testing.check_averaging(every(2, of_first), devices=ONE)
    report.require()
    assert report.row("the period is kept").reason == "not claimed, period="
    assert report.row("the mean is conserved").verdict == "not checked"
    # nor what the method, which hands no staleness on, cannot show
    assert report.row("any staleness").verdict == "not checked"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda model: model, r"to unpack \(expected 2, got 1"),
        (lambda model: ({}, ()), "`mix` must return .* with a model like the given"),
        (
            lambda model: (optax.tree.cast(model, jnp.int8)["b"], ()),
            "`mix` must return",
        ),
        (lambda model: (model, 1.0), "`mix` must return a memory like"),
    ],
)
def test_what_a_mix_returns_is_checked(answer, message):
    tx = dj.extend.averaged(optax.sgd(0.1), lambda t, m, before, model: answer(model))

    def step(x):
        return tx.update({"b": x}, tx.init({"b": x}), {"b": x})

    with pytest.raises((TypeError, ValueError), match=message):
        jax.vmap(step, axis_name="workers")(jnp.ones(2))


# protocols


def asgd(server):
    server.start_all()
    for arrival in server:
        server.take(arrival)
        server.update()
        server.start(arrival.worker)


def forgets_worker_2(server):
    """Does not take the first gradient of worker 2, and does not start it again."""
    server.start_all()
    for arrival in server:
        if arrival.worker != 2:
            server.take(arrival)
            server.update()
            server.start(arrival.worker)


def forgets_worker_2_late(server):
    server.start_all()
    for arrival in server:
        if arrival.worker != 2 or server.version <= 31:
            server.take(arrival)
            server.update()
            server.start(arrival.worker)


def never_restarts_worker_2(server):
    server.start_all()
    for arrival in server:
        server.take(arrival)
        server.update()
        if arrival.worker != 2:
            server.start(arrival.worker)


def drops_worker_2(server):
    """Drops the gradient of worker 2, and never starts it again."""
    server.start_all()
    for arrival in server:
        if arrival.worker == 2:
            server.drop(arrival)
        else:
            server.take(arrival)
            server.update()
            server.start(arrival.worker)


def loses_worker_2_at_a_limit(server):
    """Does not start worker 2 again after its first task, which fails."""
    for worker in range(server.num_workers):
        server.start(worker, limit=0.01 if worker == 2 else math.inf)
    for arrival in server:
        if not arrival.failed:
            server.take(arrival)
            server.update()
            server.start(arrival.worker)


# protocol: (the promise that it breaks, a part of the sentence)
PROTOCOLS = {
    deaf: ("each gradient is taken once", "neither taken nor dropped"),
    forgets_worker_2: ("each gradient is taken once", "worker 2 .* neither taken nor"),
    forgets_worker_2_late: ("each gradient is taken once", "worker 2 .* neither"),
    twice: ("each gradient is taken once", "must receive each gradient once"),
    only_two: (
        "all workers are started",
        "the workers 2, 3, 4, 5 are never started",
    ),
    never_restarts_worker_2: ("all workers are started", "worker 2 is not started ag"),
    drops_worker_2: ("all workers are started", "worker 2 is not started again"),
    loses_worker_2_at_a_limit: ("all workers are started", "worker 2 is not started"),
    returns: ("it serves to the end", "must serve until"),
    stops: ("it serves to the end", "waits forever"),
    backwards: ("time does not run back", "of updates fall"),
    undecided: ("the same seed, the same trace", "another trace"),
    moody(): ("the same seed, the same trace", "another trace"),
}


@pytest.mark.parametrize("method", PROTOCOLS, ids=lambda p: p.__name__)
def test_a_wrong_protocol_is_found_in_the_row_of_its_promise(method, monkeypatch):
    promise, sentence = PROTOCOLS[method]
    check = functools.partial(testing.check_protocol, lambda: method)
    assert_found(check, promise, sentence, monkeypatch)


def leaves_worker_2_out(server):
    """Leaves worker 2 out after its first gradient, and reports it."""
    server.start_all()
    for arrival in server:
        server.take(arrival)
        server.update()
        if arrival.worker == 2:
            server.leave_out([2])
        else:
            server.start(arrival.worker)


# clusters in which workers wait, are drawn, are left out or are woken
PATIENT = [
    leaves_worker_2_out,
    *(protocols.k_sync(2), protocols.k_batch_async(2), protocols.n_softsync(2)),
    *(protocols.round_robin(), protocols.event_triggered(0.1), protocols.ringleader()),
    *(protocols.ringmaster(4, stop=True), protocols.rennala(3)),
    *(protocols.malenia(1.5), protocols.ia2sgd()),
    *(protocols.fedbuff(2, concurrency=2), protocols.gradient_coding(2, 2)),
    *(protocols.groups(6, data="static"), protocols.progressive_groups(6)),
    *(
        protocols.mindflayer([0, 1, 2, 1, 1, 3], 4.0),
        protocols.ssp(1),
        protocols.psp(1, 2),
    ),
    *(protocols.psp(2, 0, poll_seconds=0.5), protocols.ssp(0)),
    protocols.bounded_staleness(6, late="wait", batch=2),
]


@pytest.mark.parametrize("updates", [20, 60])
@pytest.mark.parametrize(
    "protocol", PATIENT, ids=lambda one: getattr(one, "__name__", None) or repr(one)
)
def test_a_sound_protocol_keeps_all_promises(protocol, updates):
    testing.check_protocol(lambda: protocol, updates=updates).require()


def test_a_version_that_is_counted_wrong_is_found(monkeypatch):
    start = dj.cluster.Server.start

    def one_too_old(server, worker, **options):
        start(server, worker, read_version=max(server.version - 1, 0), **options)

    monkeypatch.setattr(dj.cluster.Server, "start", one_too_old)
    row = testing.check_protocol(lambda: asgd).row("staleness is counted right")
    assert row.verdict == "fails" and "is recorded with" in row.reason


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: testing.check(jnp.sin, PARAMS), "`tx` must be an Optax transformat"),
        (
            lambda: testing.check_protocol(asgd),
            r"write check_protocol\(lambda: protocol\)",
        ),
    ],
)
def test_what_cannot_be_checked_is_refused(call, message):
    with pytest.raises(TypeError, match=message):
        call()


# the command

MODULE = """
import delayjax as dj
import jax
import optax

tx = optax.sgd(0.1)
params = optax.tree.zeros_like({"w": 1.0})

def update(updates, state, params=None, *, staleness=0):
    return tx.update(updates, state)

narrow = optax.GradientTransformationExtraArgs(tx.init, update)

def of_first(inner):
    def mix(step, memory, before, model):
        first = jax.tree.map(lambda x: jax.lax.all_gather(x, "workers")[0], model)
        return optax.tree.where(step % 3 == 1, first, model), memory

    return dj.extend.averaged(inner, mix)

def asgd(server):
    server.start_all()
    for arrival in server:
        server.take(arrival)
        server.update()
        server.start(arrival.worker)

def deaf(server):
    server.start_all()
    for arrival in server:
        if arrival.worker > 0:
            server.take(arrival)
            server.update()
        server.start(arrival.worker)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a module `mine`, in which the command runs."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.runs
def test_the_command_starts_devices_and_ends_with_1_if_a_promise_fails(folder):
    flags = "mine:narrow", "--devices=4", "--params=mine:params"
    done = subprocess.run(
        [sys.executable, "-m", "delayjax.testing", *flags],
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    head = "mine:narrow: 13 promises hold, 1 fail, 2 not checked"
    assert done.stdout.startswith(head)
    assert "  holds        run is simulate\n" in done.stdout
    assert "no dimension of a leaf" in done.stdout


def test_the_command_checks_protocols_and_ends_with_0_if_all_holds(folder, capsys):
    assert main(["mine:asgd", "--kind=protocol"]) == 0
    assert main(["mine:deaf", "--kind=protocol"]) == 1
    sentence = "fails        each gradient is taken once: the gradient of wor"
    assert sentence in capsys.readouterr().out


@pytest.mark.runs
@pytest.mark.parametrize(
    ("claims", "rows"),
    [
        (
            ["--period=2", "--conserves-mean"],
            [
                "fails        the mean is conserved: step 1 moves",
                "fails        the period is kept: the models are mixed at steps",
            ],
        ),
        (
            [],
            [
                "not checked  the mean is conserved: not claimed",
                "not checked  the period is kept: not claimed",
            ],
        ),
    ],
)
def test_the_command_checks_what_an_average_claims(folder, claims, rows, capsys):
    assert main(["mine:of_first", "--kind=averaging", *claims]) == bool(claims)
    output = capsys.readouterr().out
    assert all(row in output for row in rows), output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine"], "the method must be MODULE:NAME, got 'mine'"),
        (["mine:ty"], "the module 'mine' has no 'ty'"),
        (["yours:tx"], "the module 'yours' cannot be imported: ModuleNotFoundError"),
        (["mine:asgd"], "must be an Optax transformation, got <function asgd"),
        (["mine:tx", "--devices=0"], "--devices must be at least 1, got 0"),
        (["mine:tx", "--params=mine:no"], "the module 'mine' has no 'no'"),
        (["mine:tx", "--period=2"], "write --kind=averaging, got --kind=transform"),
        (
            ["mine:asgd", "--kind=protocol", "--conserves-mean"],
            "write --kind=averaging, got --kind=protocol",
        ),
        (
            ["mine:of_first", "--kind=averaging", "--period=0"],
            "`period` must be at least 1, got 0",
        ),
    ],
)
def test_a_bad_argument_is_one_line(folder, arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    output = capsys.readouterr().err
    assert message in output and output.count("\n") == 1
