"""The promises of a transformation, and how each is checked."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from delayjax._src.ground import axes
from delayjax._src.testing import comparing, placing, subjects
from delayjax._src.testing.report import (
    BrokenError,
    UncheckedError,
    said,
)
from delayjax._src.workers.run import run
from delayjax._src.workers.simulate import simulate
from delayjax._src.workers.state import WorkerState

STEPS = 9
SEEDS = 1, 2
_COMPARED = 5  # steps: rounding of narrow numbers grows
_EAGER = "eager and compiled steps"
_AGES = *range(65), 1000

REMEDIES = {
    "a step runs": "update(updates, state, params=None, *, staleness=None, ...,"
    " **extra_args) must return (updates, state).",
    "types stay": "begin with the type that a step returns, jnp.zeros((), jnp.float32),"
    " and cast what a step returns: .astype(leaf.dtype).",
    "any staleness": "limit a divisor, a logarithm or a power: 1 / (1 + staleness),"
    " jnp.maximum(staleness, 1); a table needs"
    " jnp.round(staleness).astype(jnp.int32). A rule that takes no mean raises an error"
    " that names `staleness`.",
    "init from shapes": "make the state of shapes and dtypes alone, with"
    " jnp.zeros_like(leaf).",
    "jit is eager": "use jnp.where or jax.lax.cond, and no `if`, float() or NumPy on"
    " what `update` is given; keep in the state what changes from step to step.",
    "scan is the loop": "return the state in the types that `init` gives it.",
    "vmap is each alone": "use functions of JAX that `vmap` knows, without"
    " side effects.",
    "a worker is the rule alone": "use a collective only over an axis that you are"
    " given, and then check with axis_name=.",
    "devices are not counted": "use jax.lax.axis_size(axis_name) for the number of"
    " workers.",
    "each gradient counts": "hand the gradients of all workers to the collective.",
    "buffers are distinct": "return extend.unshared(state, params) from `init`, and"
    " jnp.copy of what `update` keeps of its arguments.",
    "unknown extra arguments": "give `update` a parameter **extra_args, and do not use"
    " it.",
    "a checkpoint goes on": "keep in the state, as arrays, all that changes from step"
    " to step.",
    "workers' types": "return extend.vary_as(params, state) from `init`, and"
    " extend.typed_like(new_state, state) where a new value does not depend on the"
    " gradients.",
    "sharded, Auto axes": "make the state with jnp.zeros_like(leaf), which keeps the"
    " sharding of `leaf`; jnp.zeros(leaf.shape) loses it.",
    "sharded, Explicit axes": "make the state with jnp.zeros_like(leaf), which keeps"
    " the sharding of `leaf`; jnp.zeros(leaf.shape) loses it.",
    "run is simulate": "draw what is random from a key and the step alone, and use"
    " collectives over the axis of the workers alone.",
}


@dataclasses.dataclass(kw_only=True)
class Contract:
    """The promises of one transformation on one tree of parameters."""

    tx: optax.GradientTransformationExtraArgs
    params: Any
    extra_args: subjects.ExtraArgs
    axis_name: str | None  # of the workers whose step this is
    shared: Any  # which part of a worker's state must be the same on all
    workers: int
    devices: Sequence[Any]
    tolerance: float
    steps: int = STEPS
    _trained: dict[int, list[Any]] = dataclasses.field(default_factory=dict, init=False)

    def promises(self) -> dict[str, Callable[[], None]]:
        """The check of each promise. If the first fails, no other promise can hold."""
        promises = {
            "a step runs": self.a_step_runs,
            "types stay": self.types_stay,
            "any staleness": self.any_staleness,
            "init from shapes": self.init_needs_shapes_alone,
            "jit is eager": functools.partial(self.compiled_as_eager, "jit"),
            "scan is the loop": functools.partial(self.compiled_as_eager, "scan"),
            "vmap is each alone": functools.partial(self.compiled_as_eager, "vmap"),
            "devices are not counted": self.devices_are_not_counted,
            "buffers are distinct": self.buffers_are_distinct,
            "unknown extra arguments": self.unknown_extra_arguments_change_nothing,
            "a checkpoint goes on": self.a_checkpoint_goes_on,
            "workers' types": self.a_worker_keeps_its_types,
            "sharded, Auto axes": functools.partial(self.sharded, AxisType.Auto),
            "sharded, Explicit axes": functools.partial(
                self.sharded, AxisType.Explicit
            ),
            "run is simulate": self.run_is_simulate,
        }
        if self.axis_name is None:
            check = functools.partial(self.compiled_as_eager, "worker")
            promises["a worker is the rule alone"] = check
        elif self.shared is None:
            promises["each gradient counts"] = self.each_gradient_counts
        return promises

    # what is trained

    def subject(self, **more: Any) -> subjects.Subject:
        """The training step: of one model, or of all workers."""
        if self.axis_name is None:
            return subjects.alone(self.tx, self.extra_args, **more)
        subject = self.together(simulate, self.workers, **more)

        def start(params):
            try:
                return subject.start(params)
            except Exception as error:
                words = "workers.simulate refuses the step, see workers' types"
                raise UncheckedError(words) from error

        return subject._replace(start=start)

    @functools.cached_property
    def usual(self) -> subjects.Subject:
        """The training step without further arguments."""
        return self.subject()

    def together(self, execution: Callable, over: Any, **more: Any) -> subjects.Subject:
        """The training step of all workers, in one of the two executions."""
        name = self.axis_name or "workers"
        step = subjects.of_a_worker(
            self.tx, self.extra_args, name, mean=self.axis_name is None, **more
        )
        held = execution(step, over, axis_name=name)
        return subjects.together(self.tx, held, self.shared, self.of_workers())

    def given(self, seed: int) -> Any:
        """The batches of a seed."""
        if self.axis_name is None:
            return subjects.batches(self.params, seed, self.steps)
        return self.of_workers(seed)

    def of_workers(self, seed: int = SEEDS[0]) -> Any:
        """The batches of all workers."""
        return subjects.batches(self.params, seed, self.steps, self.workers)

    def apart(self, execution: Callable, over: Any) -> subjects.Subject:
        """The training step of workers that each train their own model."""
        step = subjects.of_a_worker(self.tx, self.extra_args, "workers", mean=False)
        held = execution(step, over, axis_name="workers")
        return subjects.together(self.tx, held, False, self.of_seeds())

    def of_seeds(self) -> Any:
        """The batches of workers, with another seed for each worker."""
        count = max(self.workers, len(SEEDS))
        given = [self.given(SEEDS[0] + worker) for worker in range(count)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves, 1), *given)

    @functools.cached_property
    def simulated(self) -> WorkerState:
        """The state of such workers after each step, simulated."""
        subject = self.apart(simulate, max(self.workers, len(SEEDS)))
        batches = self.of_seeds()

        def step(carry, batch):
            carry, _ = subject.step(carry, batch)
            return carry, carry

        @jax.jit
        def carries(params, batches):
            return jax.lax.scan(step, subject.start(params), batches)[1]

        return carries(self.params, batches)

    @functools.cached_property
    def executed(self) -> subjects.Subject:
        """The training step as the promises run it: one operation at a time.

        Workers that take steps together are compiled, because conditions among them
        take seconds otherwise.
        """
        subject = self.usual
        if self.axis_name is None:
            return subject
        compiled = subject._replace(step=jax.jit(subject.step))
        start = subject.start(self.params)
        try:
            compiled.step(start, subjects.at(self.given(SEEDS[0]), 0))
        except Exception:  # perhaps because it is compiled
            return subject
        return compiled

    def trained(self, seed: int = SEEDS[0]) -> list[Any]:
        """The carry before the first step and after each.

        It has five steps, because one operation after another takes long. If workers
        take steps together, it has all steps.
        """
        if seed not in self._trained:
            steps = self.steps if self.axis_name is not None else _COMPARED
            self._trained[seed] = list(self.carries(self.given(seed), steps))
        return self._trained[seed]

    def carries(self, batches: Any, steps: int) -> Iterator[Any]:
        """The carry before the first step and after each of `steps` steps."""
        carry = self.executed.start(self.params)
        yield carry
        for t in range(steps):
            carry, _ = self.executed.step(carry, subjects.at(batches, t))
            yield carry

    def with_other_gradients(self) -> Iterator[Any]:
        """For each worker, the last carry if its gradients have the opposite sign."""
        grads, clock = self.of_workers()
        for worker in range(self.workers):
            turned = jax.tree.map(lambda g, w=worker: g.at[:, w].multiply(-1), grads)
            *_, last = self.carries((turned, clock), self.steps)
            yield last

    # the promises

    def a_step_runs(self) -> None:
        if self.axis_name is not None:
            step = subjects.of_a_worker(
                self.tx, self.extra_args, self.axis_name, mean=False
            )
            batch = subjects.at(self.of_workers(), 0)
            carry = self.params, self.tx.init(self.params)
            over = jax.vmap(step, in_axes=(None, 0), axis_name=self.axis_name)
            jax.eval_shape(over, carry, batch)
        state = self.tx.init(self.params)
        comparing.check_types("state", state, state)  # all leaves are arrays
        try:
            carries = self.trained()
        except UncheckedError:
            return
        for t, carry in enumerate(carries):
            params, state = _pair(carry)
            check_finite("params", params, f"after {t} steps")
            # a state may begin with the largest or smallest of all numbers
            check_finite("state", state, f"after {t} steps", infinite=True)
        if self.axis_name is None:
            try:
                state = self.simulated.state
            except Exception:  # other promises report the error
                return
            stacked = jax.tree.map(comparing.numbers, state)
            for t in range(self.steps):
                params, state = subjects.at(stacked, t)
                check_finite("params", params, f"after {t + 1} steps")
                check_finite("state", state, f"after {t + 1} steps", infinite=True)

    def types_stay(self) -> None:
        subject, batch = self.usual, subjects.at(self.given(SEEDS[0]), 0)
        carries = self.trained()
        before = carries[0]
        traced, updates = jax.eval_shape(subject.step, before, batch)
        for after in (carries[1], traced):
            (_, old), (_, new) = map(_pair, (before, after))
            comparing.check_types("state", old, new)
        comparing.check_types(
            "updates", batch[0], updates, was="as a gradient", when="as an update"
        )

    def any_staleness(self) -> None:
        extras = self.extra_args(jnp.int32(0), self.params)
        if "staleness" not in subjects.accepted(self.tx.update, extras):
            raise UncheckedError("no staleness is handed on")
        if self.broken_compiled:
            raise UncheckedError("it is not yet the same in `jit`")
        carry, batch = self.trained()[-1], subjects.at(self.given(SEEDS[0]), 0)

        def step(staleness):
            return self.subject(staleness=staleness).step(carry, batch)

        ages = {"an integer": jnp.asarray(_AGES, jnp.int32)}
        mean = jax.ShapeDtypeStruct((), jnp.float32)
        try:
            both = jax.eval_shape(step, jnp.int32(0)), jax.eval_shape(step, mean)
        except Exception as error:
            if "`staleness`" not in str(error):  # else it says that it takes no mean
                sentence = f"a mean staleness, a float, ends in {said(error)}"
                raise BrokenError(sentence) from error
        else:
            whole, of_mean = ({"state": c, "updates": u} for c, u in both)
            words = dict(was="of an integer staleness", when="of a mean, a float")
            for name in whole:
                comparing.check_types(name, whole[name], of_mean[name], **words)
            # from 0 on, with halves
            ages["a mean"] = jnp.append(jnp.float32([0]), 0.5 + ages["an integer"])

        @jax.jit
        def steps(ages):
            return {kind: jax.lax.map(step, values) for kind, values in ages.items()}

        results = steps(ages)
        for kind in ages:
            carries, updates = jax.tree.map(comparing.numbers, results[kind])
            for i, age in enumerate(ages[kind].tolist()):
                when = f"at a staleness of {age}"
                check_finite("updates", subjects.at(updates, i), when)
                _, state = _pair(carries)
                check_finite("state", subjects.at(state, i), when, infinite=True)

    def init_needs_shapes_alone(self) -> None:
        shapes = jax.eval_shape(lambda: self.params)
        state = self.tx.init(self.params)
        of_shapes = self.tx.init(shapes)
        comparing.check_types("state", state, of_shapes, when="of shapes")
        traced = jax.eval_shape(self.tx.init, shapes)
        comparing.check_types("state", state, traced, when="where `init` is traced")

    @functools.cached_property
    def broken_compiled(self) -> dict[str, Exception]:
        """The errors of "jit", "scan", "vmap" and "worker", if there are any.

        One program checks all four: a compiled scan of simulated workers, which are a
        `vmap`. Only if it fails, the four are checked one by one.
        """
        subject = self.usual
        given = [self.given(seed) for seed in SEEDS]

        def carries(batches):
            def step(carry, batch):
                carry, _ = subject.step(carry, batch)
                return carry, carry

            return jax.lax.scan(step, subject.start(self.params), batches)[1]

        def check_jit():
            step, carry = jax.jit(subject.step), self.trained()[0]
            for t in range(_COMPARED):
                carry, _ = step(carry, subjects.at(given[0], t))
                self.check_close(carry, self.trained()[t + 1], _EAGER)

        def check_scan():
            scanned = subjects.at(jax.jit(carries)(given[0]), _COMPARED - 1)
            self.check_close(scanned, self.trained()[_COMPARED], "a scan and a loop")

        def check_vmap():
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *given)
            mapped = jax.jit(jax.vmap(carries))(stacked)
            for i, seed in enumerate(SEEDS):
                last = subjects.at(subjects.at(mapped, i), _COMPARED - 1)
                which = "seeds together and alone"
                self.check_close(last, self.trained(seed)[_COMPARED], which)

        def check_workers():
            for worker, seed in enumerate(SEEDS):
                last = subjects.at(self.simulated, _COMPARED - 1).one(worker=worker)
                which = "a worker and the rule alone"
                self.check_close(last, self.trained(seed)[_COMPARED], which)

        try:
            if self.axis_name is not None:
                first, _ = subject.step(self.trained()[0], subjects.at(given[0], 0))
                self.check_close(first, self.trained()[1], _EAGER)
                check_vmap()
            else:
                check_workers()
            return {}
        except Exception as error:
            of_all = error
        later = UncheckedError("it is not yet the same in `jit`")
        if (error := _raised(check_jit)) is not None:
            return {"jit": error, "scan": later, "vmap": later, "worker": later}
        if (error := _raised(check_scan)) is not None:
            later = UncheckedError("it is not yet the same in `scan`")
            return {"scan": error, "vmap": later, "worker": later}
        if self.axis_name is not None:
            return {"vmap": of_all}
        if (error := _raised(check_vmap)) is not None:
            later = UncheckedError("it is not yet the same in `vmap`")
            return {"vmap": error, "worker": later}
        return {"worker": of_all}

    def compiled_as_eager(self, name: str) -> None:
        error = self.broken_compiled.get(name)
        if error is not None:
            raise error

    def buffers_are_distinct(self) -> None:
        params = subjects.as_given(self.params)
        held = {"params": params, "state": self.tx.init(params)}
        comparing.check_apart(held, "after `init`")
        subject, batch = self.usual, subjects.at(self.given(SEEDS[0]), 0)
        carry = subject.start(params)
        params, state = _pair(carry)
        comparing.check_apart({"params": params, "state": state}, "at first")
        if self.axis_name is None:  # a compiled step returns new buffers
            _, new = subject.step(carry, batch)[0]
            held = {"params": params, "gradients": batch[0], "state": new}
            comparing.check_apart(held, "after a step")

    def unknown_extra_arguments_change_nothing(self) -> None:
        if not subjects.takes_any(self.tx.update):
            raise BrokenError("`update` refuses arguments that it does not know.")
        if self.operations(weather="fair") != self.usual_operations:
            raise BrokenError('weather="fair" changes the operations of a step.')

    @functools.cached_property
    def usual_operations(self) -> str:
        """The operations without further arguments."""
        return self.operations()

    def operations(self, **more: Any) -> str:
        """The operations of `init` and of the first step."""
        batch = subjects.at(self.given(SEEDS[0]), 0)
        subject = self.subject(**more)

        def first(params, batch):
            return subject.step(subject.start(params), batch)

        return str(jax.make_jaxpr(first)(self.params, batch))

    def devices_are_not_counted(self) -> None:
        with _four_times_the_devices():
            after = self.operations()
        if after != self.usual_operations:
            raise BrokenError(
                "the number of devices changes the operations of `init` and `update`."
            )

    def each_gradient_counts(self) -> None:
        plain = float_leaves(_pair(self.trained()[-1])[0])
        for worker, carry in enumerate(self.with_other_gradients()):
            other = float_leaves(_pair(carry)[0])
            if plain and self.are_close(plain, other):
                raise BrokenError(
                    f"the gradients of worker {worker} change no parameter in"
                    f" {self.steps} steps."
                )

    def a_checkpoint_goes_on(self) -> None:
        carries, kept = self.trained(), 2
        subject, batches = self.executed, self.given(SEEDS[0])
        carry = subjects.restored(carries[kept], subject.start(self.params))
        for t in range(kept, len(carries) - 1):
            carry, _ = subject.step(carry, subjects.at(batches, t))
        which = "a run and one that was saved and restored"
        comparing.check_close(carry, carries[-1], 0.0, which)

    def a_worker_keeps_its_types(self) -> None:
        self.together(simulate, self.workers).start(self.params)
        if self.axis_name is not None and self.shared is None:
            return  # its parameters do not differ
        name = self.axis_name or "workers"
        mesh = AbstractMesh((self.workers,), (name,), axis_types=(AxisType.Auto,))
        types = []

        def worker(params, batch):
            params, (grads, t) = axes.vary((params, batch), axis_name=name)
            state = self.tx.init(params)
            extras = subjects.accepted(self.tx.update, self.extra_args(t, params))
            # a worker's own staleness, worker and loss
            extras = axes.vary(jax.tree.map(jnp.asarray, extras), axis_name=name)
            types.extend([state, self.tx.update(grads, state, params, **extras)[1]])
            return ()

        batch = subjects.at(subjects.batches(self.params, SEEDS[0], 1), 0)
        # tracing shows the types: nothing is compiled
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            jax.eval_shape(
                jax.shard_map(worker, mesh=mesh, in_specs=P(), out_specs=P()),
                *jax.eval_shape(lambda: (self.params, batch)),
            )
        comparing.check_types("state", *types, when="after a step, in `shard_map`")

    def sharded(self, axis_type: AxisType) -> None:
        if self.axis_name is not None:
            raise UncheckedError("the step has an axis of workers")
        mesh, specs = placing.mesh_of(self.params, self.devices, axis_type)

        def place(tree):
            return jax.tree.map(
                lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec)),
                *(tree, specs),
            )

        subject, batch = self.usual, subjects.at(self.given(SEEDS[0]), 0)
        grads, t = batch
        with jax.set_mesh(mesh):
            before = subject.start(place(subjects.as_given(self.params)))
            step = jax.jit(subject.step, donate_argnums=0)
            after, updates = step(before, (place(grads), t))
        comparing.check_types("state", before[1], after[1])
        for name, tree in {
            "state": before[1],
            "new state": after[1],
            "params": after[0],
            "updates": updates,
        }.items():
            placing.check_parts(name, tree, before[0])
        olds, news = map(jax.tree.leaves_with_path, (before[1], after[1]))
        for (path, old), (_, new) in zip(olds, news, strict=True):
            was, now = placing.shard(old), placing.shard(new)
            if was != now:
                raise BrokenError(
                    f"`state{jax.tree_util.keystr(path)}` has {was} of its"
                    f" {list(old.shape)} on a device at first, and {now} after a step."
                )
        which = "a sharded step and one on one device"
        self.check_close(after, self.trained()[1], which)

    def run_is_simulate(self) -> None:
        if len(self.devices) < max(self.workers, 2):
            raise UncheckedError(
                f"{self.workers} workers need as many devices, here"
                f" {'is 1' if len(self.devices) == 1 else f'are {len(self.devices)}'}"
            )
        name = self.axis_name or "workers"
        chosen = np.asarray(self.devices[: self.workers])
        mesh = Mesh(chosen, (name,), axis_types=(AxisType.Auto,))
        which = "workers.simulate and workers.run"

        def end(subject, params, batches):
            compiled = jax.jit(lambda c: jax.lax.scan(subject.step, c, batches)[0])
            return compiled(subject.start(params)).state

        if self.axis_name is None:
            if self.broken_compiled:
                raise UncheckedError("a simulated worker is not yet the rule alone")
            few = jax.tree.map(lambda leaf: leaf[:_COMPARED], self.of_seeds())
            each = end(self.apart(run, mesh), self.params, few)
            expected = subjects.at(self.simulated, _COMPARED - 1).state
            self.check_close(each, expected, which)
        # the two sum in other orders, which narrow numbers would show
        wide = dataclasses.replace(self, params=subjects.widened(self.params))
        batches = wide.of_workers()
        if self.axis_name is None:
            batches = jax.tree.map(lambda leaf: leaf[:_COMPARED], batches)
            subject = wide.together(simulate, self.workers)
            expected = end(subject, wide.params, batches)
        else:
            expected = wide.trained()[-1].state
        together = end(wide.together(run, mesh), wide.params, batches)
        comparing.check_close(expected, together, 10 * self.tolerance, which)

    def are_close(self, ours: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
        """Whether arrays differ by rounding alone."""
        return all(
            comparing.is_close(a, b, self.tolerance).all()
            for a, b in zip(ours, theirs, strict=True)
        )

    def check_close(self, ours: Any, theirs: Any, which: str) -> None:
        """Checks that two trees are equal up to rounding."""
        comparing.check_close(ours, theirs, self.tolerance, which, self.params)


class _FourTimes:
    """A backend of JAX that has each of its devices four times."""

    def __init__(self, backend: Any):
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._backend, name)
        if name in ("devices", "local_devices", "device_count", "local_device_count"):
            return lambda: 4 * value()
        return value


_traced_anew = jax.make_user_context()  # functions in `jax.jit` have other caches in it


@contextlib.contextmanager
def _four_times_the_devices() -> Iterator[None]:
    """Lets JAX count and list each device four times, by all of its functions.

    `jax.devices`, `local_devices`, `device_count` and `local_device_count` ask the
    function `get_backend` of their module. So it does not matter how a rule names them.
    """
    module = jax.device_count.__globals__
    get_backend = module["get_backend"]

    def multiplied(*args, **options):
        return _FourTimes(get_backend(*args, **options))

    try:
        with mock.patch.dict(module, get_backend=multiplied), _traced_anew(True):
            module["local_devices"].cache_clear()
            yield
    finally:
        module["local_devices"].cache_clear()


def _raised(function: Callable[[], None]) -> Exception | None:
    try:
        function()
    except Exception as error:
        return error
    return None


def check_finite(name: str, tree: Any, when: str, *, infinite: bool = False) -> None:
    """Checks that a tree has no NaN, and no infinite number unless it may have some."""
    is_sound = (lambda x: ~np.isnan(x)) if infinite else np.isfinite
    for path, leaf in jax.tree.leaves_with_path(tree):
        values = comparing.numbers(leaf)
        if jnp.issubdtype(values.dtype, jnp.inexact) and not is_sound(values).all():
            wrong = values[~is_sound(values)].ravel()[0]
            shown = "NaN" if np.isnan(wrong) else str(wrong)
            raise BrokenError(
                f"`{name}{jax.tree_util.keystr(path)}` is {shown} {when}.",
                "guard divisions, roots and logarithms at 0.",
            )


def float_leaves(tree: Any) -> list[np.ndarray]:
    """The leaves that a gradient moves."""
    leaves = map(comparing.numbers, jax.tree.leaves(tree))
    return [x for x in leaves if x.size and jnp.issubdtype(x.dtype, jnp.inexact)]


def _pair(carry: Any) -> Any:
    """(params, state) of a carry, also of all workers."""
    return carry.state if isinstance(carry, WorkerState) else carry
