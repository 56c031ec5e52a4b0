"""The promises of a transformation, and how each is checked."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from delayjax._src.ground import axes
from delayjax._src.testing import comparing, placing, saving, subjects
from delayjax._src.testing.report import BrokenError, Promise, UncheckedError
from delayjax._src.workers.run import run
from delayjax._src.workers.simulate import simulate
from delayjax._src.workers.state import WorkerState

STEPS = 5
SEEDS = 1, 2
_EAGER = "eager and compiled steps"

REMEDIES = {
    "a step runs": "update(updates, state, params=None, *, staleness=None, ...,"
    " **extra_args) must return (updates, state).",
    "types stay": "begin with the type that a step returns, jnp.zeros((), jnp.float32),"
    " and cast what a step returns: .astype(leaf.dtype).",
    "init from shapes": "make the state of shapes and dtypes alone, with"
    " jnp.zeros_like(leaf).",
    "jit is eager": "use jnp.where or jax.lax.cond, and no `if`, float() or NumPy on"
    " what `update` is given; keep in the state what changes from step to step.",
    "scan is the loop": "return the state in the types that `init` gives it.",
    "vmap is each alone": "use functions of JAX that `vmap` knows, without"
    " side effects.",
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

    def promises(self) -> tuple[Promise, list[Promise]]:
        """The first, without which no other holds, and the others."""
        found = {
            "a step runs": self.a_step_runs,
            "types stay": self.types_stay,
            "init from shapes": self.init_needs_shapes_alone,
            "jit is eager": functools.partial(self.compiled_as_eager, "jit"),
            "scan is the loop": functools.partial(self.compiled_as_eager, "scan"),
            "vmap is each alone": functools.partial(self.compiled_as_eager, "vmap"),
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
        first, *others = (Promise(w, c, REMEDIES[w]) for w, c in found.items())
        return first, others

    # what is trained

    def subject(self, **more: Any) -> subjects.Subject:
        """The training step: of one model, or of all workers."""
        if self.axis_name is None:
            return subjects.alone(self.tx, self.extra_args, **more)
        own = self.together(simulate, self.workers, **more)

        def start(params):
            try:
                return own.start(params)
            except Exception as error:
                words = "workers.simulate refuses the step, see workers' types"
                raise UncheckedError(words) from error

        return own._replace(start=start)

    def together(self, execution: Callable, over: Any, **more: Any) -> subjects.Subject:
        """All workers, in one of the two executions."""
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

    @functools.cached_property
    def executed(self) -> subjects.Subject:
        """The training step as the promises run it: one operation at a time.

        Workers that take steps together are compiled, because conditions among them
        take seconds otherwise.
        """
        own = self.subject()
        if self.axis_name is None:
            return own
        compiled = own._replace(step=jax.jit(own.step))
        start = own.start(self.params)
        try:
            compiled.step(start, subjects.at(self.given(SEEDS[0]), 0))
        except Exception:  # perhaps because it is compiled
            return own
        return compiled

    def trained(self, seed: int = SEEDS[0]) -> list[Any]:
        """The carry before the first step and after each."""
        if seed not in self._trained:
            own, batches = self.executed, self.given(seed)
            carries = [own.start(self.params)]
            for t in range(self.steps):
                carry, _ = own.step(carries[-1], subjects.at(batches, t))
                carries.append(carry)
            self._trained[seed] = carries
        return self._trained[seed]

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
        for path, leaf in jax.tree.leaves_with_path(carries[-1]):
            values = comparing.numbers(leaf)
            if jnp.issubdtype(values.dtype, jnp.inexact) and np.isnan(values).any():
                where = jax.tree_util.keystr(path)
                raise BrokenError(
                    f"(params, state){where} is NaN after {self.steps} steps.",
                    "guard divisions and roots at 0.",
                )

    def types_stay(self) -> None:
        own, batch = self.subject(), subjects.at(self.given(SEEDS[0]), 0)
        carries = self.trained()
        before = carries[0]
        for after in (carries[1], jax.eval_shape(own.step, before, batch)[0]):
            (_, old), (_, new) = map(_pair, (before, after))
            comparing.check_types("state", old, new)
        updates = jax.eval_shape(own.step, before, batch)[1]
        comparing.check_types(
            "updates", batch[0], updates, was="as a gradient", when="as an update"
        )

    def init_needs_shapes_alone(self) -> None:
        shapes = jax.eval_shape(lambda: self.params)
        state = self.tx.init(self.params)
        of_shapes = self.tx.init(shapes)
        comparing.check_types("state", state, of_shapes, when="of shapes")
        traced = jax.eval_shape(self.tx.init, shapes)
        comparing.check_types("state", state, traced, when="where `init` is traced")

    @functools.cached_property
    def broken_compiled(self) -> dict[str, Exception]:
        """What is wrong with "jit", "scan" and "vmap".

        One program, `jit` of `vmap` of `scan`, shows that nothing is. Only if it fails
        the three are tried apart.
        """
        own = self.subject()
        given = [self.given(seed) for seed in SEEDS]

        def ends(batches):
            return jax.lax.scan(own.step, own.start(self.params), batches)[0]

        def check_jit():
            step, carry = jax.jit(own.step), self.trained()[0]
            for t in range(self.steps):
                carry, _ = step(carry, subjects.at(given[0], t))
                self.check_close(carry, self.trained()[t + 1], _EAGER)

        def check_scan():
            found = jax.jit(ends)(given[0])
            self.check_close(found, self.trained()[-1], "a scan and a loop")

        def check_vmap():
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *given)
            found = jax.jit(jax.vmap(ends))(stacked)
            for i, seed in enumerate(SEEDS):
                mine = jax.tree.map(lambda leaf, i=i: leaf[i], found)
                self.check_close(
                    mine, self.trained(seed)[-1], "seeds together and alone"
                )

        try:
            if self.axis_name is not None:
                first, _ = own.step(self.trained()[0], subjects.at(given[0], 0))
                self.check_close(first, self.trained()[1], _EAGER)
            check_vmap()
            return {}
        except Exception as error:
            of_all = error
        if (error := _raised(check_jit)) is not None:
            later = UncheckedError("it is not yet the same in `jit`")
            return {"jit": error, "scan": later, "vmap": later}
        if (error := _raised(check_scan)) is not None:
            later = UncheckedError("it is not yet the same in `scan`")
            return {"scan": error, "vmap": later}
        return {"vmap": of_all}

    def compiled_as_eager(self, name: str) -> None:
        error = self.broken_compiled.get(name)
        if error is not None:
            raise error

    def buffers_are_distinct(self) -> None:
        params = subjects.as_given(self.params)
        held = {"params": params, "state": self.tx.init(params)}
        comparing.check_apart(held, "after `init`")
        own, batch = self.subject(), subjects.at(self.given(SEEDS[0]), 0)
        carry = own.start(params)
        params, state = _pair(carry)
        comparing.check_apart({"params": params, "state": state}, "at first")
        if self.axis_name is None:  # what is compiled returns buffers of its own
            _, new = own.step(carry, batch)[0]
            held = {"params": params, "gradients": batch[0], "state": new}
            comparing.check_apart(held, "after a step")

    def unknown_extra_arguments_change_nothing(self) -> None:
        if not subjects.takes_any(self.tx.update):
            raise BrokenError("`update` refuses arguments that it does not know.")
        batch = subjects.at(self.given(SEEDS[0]), 0)
        start = self.trained()[0]

        def operations(**more):
            return str(jax.make_jaxpr(self.subject(**more).step)(start, batch))

        if operations(weather="fair") != operations():
            raise BrokenError('weather="fair" changes the operations of a step.')

    def a_checkpoint_goes_on(self) -> None:
        carries, kept = self.trained(), 2
        own, batches = self.executed, self.given(SEEDS[0])
        carry = saving.restored(saving.saved(carries[kept]), own.start(self.params))
        for t in range(kept, self.steps):
            carry, _ = own.step(carry, subjects.at(batches, t))
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
            told = subjects.accepted(self.tx.update, self.extra_args(t, params))
            # a worker's own staleness, worker and loss
            told = axes.vary(jax.tree.map(jnp.asarray, told), axis_name=name)
            types.extend([state, self.tx.update(grads, state, params, **told)[1]])
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

        own, batch = self.subject(), subjects.at(self.given(SEEDS[0]), 0)
        grads, t = batch
        with jax.set_mesh(mesh):
            before = own.start(place(subjects.as_given(self.params)))
            step = jax.jit(own.step, donate_argnums=0)
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
        self.check_close(
            after, self.trained()[1], "a sharded step and one on one device"
        )

    def run_is_simulate(self) -> None:
        if len(self.devices) < max(self.workers, 2):
            raise UncheckedError(
                f"{self.workers} workers need as many devices, here"
                f" {'is 1' if len(self.devices) == 1 else f'are {len(self.devices)}'}"
            )
        name = self.axis_name or "workers"
        chosen = np.asarray(self.devices[: self.workers])
        mesh = Mesh(chosen, (name,), axis_types=(AxisType.Auto,))
        # the two sum in other orders, which narrow numbers would show
        wide = dataclasses.replace(self, params=subjects.widened(self.params))
        batches = wide.of_workers()

        def end(execution, over):
            own = wide.together(execution, over)
            trained = jax.jit(lambda carry: jax.lax.scan(own.step, carry, batches)[0])
            return trained(own.start(wide.params)).state

        if self.axis_name is None:
            simulated = end(simulate, self.workers)
        else:
            simulated = wide.trained()[-1].state
        which = "workers.simulate and workers.run"
        tolerance = 10 * self.tolerance
        comparing.check_close(simulated, end(run, mesh), tolerance, which)

    def check_close(self, ours: Any, theirs: Any, which: str) -> None:
        """Checks that two trees are equal but for rounding."""
        comparing.check_close(ours, theirs, self.tolerance, which, self.params)


def _raised(function: Callable[[], None]) -> Exception | None:
    try:
        function()
    except Exception as error:
        return error
    return None


def _pair(carry: Any) -> Any:
    """(params, state) of a carry, also of all workers."""
    return carry.state if isinstance(carry, WorkerState) else carry
