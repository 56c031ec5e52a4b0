"""One worker's step, simulated on one device or run on many devices."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from delayjax._src.ground import axes, checks, donation, shardings, trees

Step = Callable[[Any, Any], tuple[Any, Any]]
"""One worker's step, (state, batch) -> (state, metrics)."""

Axes = tuple[tuple[str, ...], ...]
"""For each leaf of a tree, in order, the workers' axes over which it differs."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WorkerState:
    """The state of all workers. A leaf that is the same on all is held once."""

    state: Any  # leaves [*shape], or [workers, *shape] where workers differ
    axes: Axes = dataclasses.field(metadata={"static": True})  # () where shared
    # how the leaves lay when `init` got them, P() if not sharded; () if not known
    specs: shardings.Specs = dataclasses.field(default=(), metadata={"static": True})

    def one(self, *, worker: int | Mapping[str, int] = 0) -> Any:
        """One worker's state, as a copy, so that the state may be donated later.

        Args:
            worker: the index of the worker, 0 .. P - 1; with several axes an index for
                each name.

        Example:
            >>> held = WorkerState((jnp.ones(()), jnp.arange(3)), ((), ("workers",)))
            >>> held.one(worker=2)
            (Array(1., dtype=float32), Array(2, dtype=int32))
        """

        def part(name, count):
            i = checks.known(worker[name] if isinstance(worker, Mapping) else worker)
            if not 0 <= i < count:  # JAX would return another worker
                raise ValueError(
                    f"`worker` must lie in 0 .. {count - 1} along {name!r}, got {i}."
                )
            return i

        def pick(leaf, axes):
            return donation.copied(leaf[tuple(map(part, axes, leaf.shape))])

        return _map(pick, self.state, self.axes)

    def shardings(self, mesh: Mesh) -> "WorkerState":
        """The place of each leaf on a mesh, a `NamedSharding`.

        After `jax.device_put(held, held.shardings(mesh))` the `jit` of the step of
        `simulate` runs on all devices of the mesh. Take it under `jax.set_mesh(mesh)`:
        Explicit axes need it, and late sums are hidden behind computation only there.

        Args:
            mesh: devices, with the axes of the workers. Their sizes must divide the
                numbers of workers.

        Example:
            >>> mesh = jax.make_mesh((1,), ("workers",), axis_types=(AxisType.Auto,))
            >>> held = WorkerState(jnp.ones((4, 3)), (("workers",),))
            >>> held.shardings(mesh).state.spec
            P('workers',)
        """
        axes.check_mesh(mesh, tuple({name for own in self.axes for name in own}))

        def place(leaf, axes, spec):
            spec = P(*axes, *shardings.over(mesh.shape, spec))
            if mesh.abstract_mesh.explicit_axes:  # as the step's results say it
                spec = P(*spec, *(None,) * (jnp.ndim(leaf) - len(spec)))
            kind = "pinned_host" if _is_on_host(leaf) else None
            return NamedSharding(mesh, spec, memory_kind=kind)

        def spec(leaf, axes):
            return shardings.spec_of(leaf, axes, mesh.abstract_mesh)

        specs = self.specs or [*map(spec, jax.tree.leaves(self.state), self.axes)]
        places = _map(place, self.state, self.axes, specs)
        return dataclasses.replace(self, state=places)


class Workers(NamedTuple):
    """P workers that take the same step, as two functions."""

    init: Callable[..., WorkerState]
    step: Callable[[WorkerState, Any], tuple[WorkerState, Any]]


def simulate(
    step: Step,
    num_workers: int | tuple[int, ...],
    *,
    axis_name: axes.AxisName = "workers",
) -> Workers:
    """Runs one worker's step for P workers on one device, by `vmap`.

    A leaf of the state that is the same on all workers (parameters, the optimizer after
    the mean, counters) is held and computed once. A leaf that differs between workers
    (histories, outboxes, replicas) has a leading axis of P. JAX's types tell which
    leaves differ: the step is traced with more and more varying leaves, until it
    returns the types that it was given.

    Args:
        step: (state, batch) -> (state, metrics) of one worker, with collectives over
            `axis_name`. Take gradients at `vary(params)`, of the worker's own loss, and
            use `pmean` on metrics, not on the loss.
        num_workers: P; or a number for each of several axes, (groups, members).
        axis_name: the workers' axis; several names for several axes.

    Returns:
        `init(state, batch, shared=None)` makes the `WorkerState` from the state of one
        worker, made outside of any axis, and the batch of all workers for one step,
        leaves [P, ...] (arrays or shapes). `shared` says which parts must stay the same
        on all workers: a prefix tree of bools, or of names of axes. By default the
        parameters must, the first of a pair (params, rest); in another state all of it.
        With `shared=False` each worker trains its own model.

        `step(workers_state, batch)` takes one step. `jit` it with the state donated, or
        scan it. Leaves and metrics that differ have a leading axis for each such axis.

    Raises:
        ValueError: in `init` and `step`, if a shared leaf would differ between workers
            after a step, or a gradient is summed over the workers because it was not
            taken at `vary(params)`.

    Example:
        >>> def step(x, batch):
        ...     grad = jax.lax.pmean(x - batch, "workers")
        ...     return x - 0.5 * grad, jnp.abs(x - batch)
        >>> two = simulate(step, 2)
        >>> held = two.init(jnp.zeros(()), jnp.zeros(2))
        >>> held, distance = two.step(held, jnp.asarray([1.0, 3.0]))
        >>> held.state, distance
        (Array(1., dtype=float32), Array([1., 3.], dtype=float32))
    """
    checks.check_function("step", step)
    names = axes.as_names(axis_name)
    counts = num_workers if isinstance(num_workers, tuple) else (num_workers,)
    counts = tuple(checks.check_bound("num_workers", n, at_least=1) for n in counts)
    plans = _Plans(step, dict(zip(names, counts, strict=True)))

    def hold(leaf, axes, spec):
        del spec
        return jnp.broadcast_to(
            donation.copied(leaf), (*plans.sizes(axes), *jnp.shape(leaf))
        )

    def on_one(plan, held, batch):
        mapped: Any = functools.partial(_mapped, step, plans.axes, plan, held.specs)
        types = [jax.typeof(leaf).sharding for leaf in jax.tree.leaves(held.state)]
        if jax.sharding.get_abstract_mesh().explicit_axes:
            # `vmap` cannot sum what has a type with Explicit axes (jax 0.10 to 0.12)
            specs = _map(lambda _, sharding: sharding.spec, held.state, types)
            mapped = jax.sharding.auto_axes(mapped, out_sharding=(specs, P()))
        elif any(sharding.mesh.explicit_axes for sharding in types):
            raise ValueError(
                "`workers_state` lies on a mesh of Explicit axes: take the step under"
                " jax.set_mesh(mesh)."
            )
        return mapped(held.state, batch)

    return _workers(plans, hold, on_one)


def run(step: Step, mesh: Mesh, *, axis_name: axes.AxisName = "workers") -> Workers:
    """Runs one worker's step on every device along a mesh axis, by `shard_map`.

    The step and the state are the same as in `simulate`, and the numbers agree.

    Args:
        step: (state, batch) -> (state, metrics) of one worker, as in `simulate`.
        mesh: devices, with this axis, or several axes. Over its other axes each leaf
            of the state stays sharded as `init` was given it. Axes may be Auto or
            Explicit.
        axis_name: the workers' axis, or several axes.

    Returns:
        As `simulate`. `init` also places the state: each device holds the shared leaves
        and its worker's part of the others. Place batches over `axis_name` along their
        first dimension, or they move at each step. On CPU devices XLA copies a history
        that differs between workers at each step. Call `init` outside of `jit`: inside,
        JAX does not say how arrays lie on Auto axes, and each device would hold all of
        the state that is sharded over these.

    Example:
        >>> mesh = jax.make_mesh((1,), ("workers",), axis_types=(AxisType.Auto,))
        >>> one = run(lambda x, b: (x - jax.lax.pmean(b, "workers"), {}), mesh)
        >>> held = one.init(jnp.zeros(()), jnp.ones(1))
        >>> one.step(held, jnp.ones(1))[0].state
        Array(-1., dtype=float32)
    """
    checks.check_function("step", step)
    names = axes.as_names(axis_name)
    axes.check_mesh(mesh, names)
    plans = _Plans(step, {name: mesh.shape[name] for name in names}, mesh)
    explicit = mesh.abstract_mesh.explicit_axes
    if set(explicit) - set(names) and set(names) - set(explicit):
        raise ValueError(
            f"`mesh` must have workers' axes {names} of type Explicit, if others are,"
            f" got {mesh}: JAX would not keep the sharding over those. Make it with"
            " jax.make_mesh(sizes, names), or with axis_types=(AxisType.Auto, ...)."
        )

    def place(leaf, axes, spec):
        shape = (*plans.sizes(axes), *jnp.shape(leaf))
        if explicit:  # as the types of the step's results say it
            spec = P(*spec, *(None,) * (jnp.ndim(leaf) - len(spec)))
        held = NamedSharding(mesh, P(*axes, *spec))
        if _is_on_host(leaf):  # it may not fit on a device
            whole = np.broadcast_to(np.asarray(leaf), shape)
            leaf = jax.make_array_from_callback(
                shape, held.with_memory_kind("pinned_host"), whole.__getitem__
            )
            return jax.device_put(leaf, jax.memory.Space.Host)
        leaf = _put(donation.copied(leaf), NamedSharding(mesh, spec))
        if not axes:
            return leaf
        return jax.jit(jnp.broadcast_to, static_argnums=1, out_shardings=held)(
            leaf, shape
        )

    def on_devices(plan, held, batch):
        def widen(leaf, axes):
            return jnp.expand_dims(leaf, _first(axes))

        def of_one(state, batch):
            placed = shardings.keeping(step, held.specs)
            state, metrics = _squeezed(placed, plan.state, names)(state, batch)
            metrics = jax.tree.map(widen, metrics, plan.metrics)
            return _map(widen, state, plan.state), metrics

        # `shard_map` itself moves nothing along Explicit axes
        state = _map(plans.typed, held.state, plan.state)
        batch = jax.tree.map(lambda leaf: plans.typed(leaf, names), batch)
        specs = _map(lambda _, axes: P(*axes), state, plan.state)
        return jax.shard_map(
            of_one,
            mesh=mesh,
            in_specs=(specs, P(*names)),
            out_specs=(specs, plan.metrics),
            axis_names=set(names),
        )(state, batch)

    return _workers(plans, place, on_devices)


class _Plan(NamedTuple):
    """Where the results of a step differ between workers."""

    state: Axes
    metrics: Any  # a tree of `PartitionSpec`s


class _Plans:
    """The plans of a step, one for each kind of state and batch."""

    def __init__(self, step: Step, axes: dict[str, int], mesh: Mesh | None = None):
        self.step, self.axes, self.names = step, axes, tuple(axes)
        self._on = mesh  # None where the workers are simulated
        self._known: dict[Any, _Plan] = {}

    def sizes(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """The number of workers along each axis."""
        return tuple(self.axes[name] for name in axes)

    def spec(self, leaf: Any, axes: tuple[str, ...] = ()) -> P:
        """How a worker's part is sharded over other axes, as far as it is known."""
        mesh = None if self._on is None else self._on.abstract_mesh
        return shardings.beside(self.names, shardings.spec_of(leaf, axes, mesh))

    def typed(self, leaf: Any, axes: tuple[str, ...]) -> Any:
        """A leaf of all workers, in whose type is where it lies on Explicit axes."""
        sharding = self._type(self.spec(leaf, axes), axes)
        return leaf if sharding is None else jax.sharding.reshard(leaf, sharding)

    def _type(self, spec: P, axes: tuple[str, ...] = ()) -> NamedSharding | None:
        """The Explicit axes in the type of a leaf; None where there are none."""
        mesh = self._on
        if mesh is None or not mesh.abstract_mesh.explicit_axes:
            return None
        explicit = mesh.abstract_mesh.explicit_axes
        return NamedSharding(mesh, shardings.over(explicit, P(*axes, *spec)))

    def make(self, state: Any, batch: Any, shared: Any) -> _Plan:
        """The plan with the most shared leaves, for one worker's state or shapes."""
        leaves = jax.tree.leaves_with_path(state)
        plan = self._plan("state", state, batch, ((),) * len(leaves))
        if shared is None:  # the parameters, or all
            is_pair = type(state) is tuple and len(state) == 2
            shared = (True, False) if is_pair else True
        shared = jax.tree.leaves(trees.broadcast("shared", shared, state))
        along = {True: self.names, False: ()} | {name: (name,) for name in self.names}
        drifting = [
            trees.path_name(path)
            for (path, _), given, axes in zip(leaves, shared, plan.state, strict=True)
            if set(along[given]) & set(axes)
        ]
        if drifting:
            raise ValueError(
                f"The workers' copies of {', '.join(drifting)} would drift apart:"
                " average gradients or updates with dj.exchange.mean(...). If only a"
                " part of the state must be the same on all workers, tell `init` which:"
                " shared=, a tree of bools; False if each worker trains its own model."
            )
        return plan

    def of(self, held: WorkerState, batch: Any) -> _Plan:
        """The plan of a state."""
        plan = self._plan("workers_state", held.state, batch, held.axes)
        leaves = jax.tree.leaves_with_path(held.state)
        differing = [
            trees.path_name(path)
            for (path, _), now, then in zip(leaves, plan.state, held.axes, strict=True)
            if now != then
        ]
        if differing:
            raise ValueError(
                f"The state does not fit the step: {', '.join(differing)} would differ"
                " between workers after it. Make it with this step's own `init`."
            )
        return plan

    def _part(self, name: str, tree: Any, axes: Axes) -> Any:
        """Shapes of one worker's part of `tree`."""

        def part(path, leaf, own):
            sizes, shape = self.sizes(own), jnp.shape(leaf)
            if shape[: len(own)] != sizes:
                raise ValueError(
                    f"`{name}` must have leading axes {sizes}, the workers along {own},"
                    f" got shape {shape} at {trees.path_name(path)}: make the state"
                    " with `init` of this step, a batch with a part for each worker."
                )
            return _shaped(leaf, shape[len(own) :], self._type(self.spec(leaf, own)))

        leaves, structure = jax.tree.flatten_with_path(tree)
        parts = [part(*leaf, own) for leaf, own in zip(leaves, axes, strict=True)]
        return jax.tree.unflatten(structure, parts)

    def _plan(self, name: str, state: Any, batch: Any, axes: Axes) -> _Plan:
        """The least plan in which at least `axes` differ."""
        own = (self.names,) * len(jax.tree.leaves(batch))
        state, one = self._part(name, state, axes), self._part("batch", batch, own)
        leaves, structure = jax.tree.flatten((state, one))
        mesh = self._mesh()
        key = structure, axes, mesh, *leaves
        if key not in self._known:
            plan = self._trace(mesh, state, one, axes)
            while plan.state != axes:
                axes = plan.state
                plan = self._trace(mesh, state, one, axes)
            self._check_sums(plan, state, one)
            self._known[key] = plan
        return self._known[key]

    def _mesh(self) -> AbstractMesh:
        """A mesh with the axes of the workers, and others that the step may name."""
        if self._on is not None:
            return self._on.abstract_mesh
        there = jax.sharding.get_abstract_mesh()
        further = (*there.auto_axes, *there.explicit_axes)
        sizes = {name: there.shape[name] for name in further} | self.axes
        auto = (AxisType.Auto,) * len(sizes)
        return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=auto)

    def _trace(
        self, mesh: AbstractMesh, state: Any, batch: Any, differing: Axes
    ) -> _Plan:
        """The leaves that differ after a step if `differing` did before, by types."""
        plans = []

        def varies(leaf, before=()):
            over = axes.varies_over(leaf)
            return tuple(name for name in self.names if name in over or name in before)

        def of_one(held, batch):
            after, metrics = _squeezed(self.step, differing, self.names)(held, batch)
            rule = "`step` must return (state, metrics) with a state like its own"
            trees.check_alike(rule, after, state)
            differ = tuple(map(varies, jax.tree.leaves(after), differing))
            specs = jax.tree.map(lambda leaf: P(*varies(leaf)), metrics)
            plans.append(_Plan(differ, specs))
            return jnp.zeros(())

        shard_map = jax.shard_map(
            of_one,
            mesh=mesh,
            in_specs=(_map(lambda _, own: P(*own), state, differing), P(*self.names)),
            out_specs=P(),
            axis_names=set(self.names),
        )
        # the caller may have set another mesh
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            jax.eval_shape(shard_map, *self._held(state, batch, differing))
        return plans[0]

    def _held(self, state: Any, batch: Any, axes: Axes, *, typed: bool = True) -> Any:
        """Shapes of all workers' parts of a state and a batch."""

        def held(leaf, own):
            of = self._type(self.spec(leaf), own) if typed else None
            return _shaped(leaf, (*self.sizes(own), *leaf.shape), of)

        batch = jax.tree.map(lambda leaf: held(leaf, self.names), batch)
        return _map(held, state, axes), batch

    def _check_sums(self, plan: _Plan, state: Any, batch: Any) -> None:
        """Checks that leaves stay shared under `vmap`, which sums no gradient."""
        returned, batched = [], collections.Counter()
        leaves = jax.tree.leaves_with_path(
            (state, plan.metrics), is_leaf=lambda node: isinstance(node, P)
        )
        metrics = (shardings.partitions(leaf) for _, leaf in leaves[len(plan.state) :])
        allowed = [len(own) for own in (*plan.state, *metrics)]

        def step(state, batch):
            result = self.step(state, batch)
            returned.append(True)
            values, structure = jax.tree.flatten(result)
            counted = [_counting(batched, i)(x) for i, x in enumerate(values)]
            return jax.tree.unflatten(structure, counted)

        mapped = functools.partial(_mapped, step, self.axes, plan, ())
        there = jax.sharding.get_abstract_mesh() if self._on is None else self._mesh()
        try:
            with jax.sharding.use_abstract_mesh(shardings.auto_axes(there)):
                jax.eval_shape(
                    mapped, *self._held(state, batch, plan.state, typed=False)
                )
        except Exception as error:
            if not returned and there.explicit_axes:
                return  # the step names Explicit axes, which `vmap` does not have
            summed = [i for i, most in enumerate(allowed) if batched[i] > most]
            if not summed:
                raise  # the step itself failed
            where = trees.path_name(leaves[summed[0]][0])
            raise ValueError(
                "The step's gradient is summed over the workers, because it was not"
                " taken at workers.vary(params). `vmap` would not sum it, and"
                f" {where} of its (state, metrics) would differ: write"
                " jax.value_and_grad(loss)(workers.vary(params), batch)."
            ) from error


def _counting(counts: collections.Counter, place: int) -> Callable:
    """The identity, which counts the `vmap`s that map its argument."""

    @custom_vmap
    def same(leaf):
        return leaf

    @same.def_vmap
    def rule(axis_size, in_batched, leaf):
        del axis_size
        counts[place] += 1
        return _counting(counts, place)(leaf), in_batched[0]

    return same


def _workers(plans: _Plans, hold: Callable, execute: Callable) -> Workers:
    """Workers from functions of (leaf, axes, spec) and of (plan, held, batch)."""

    def init_fn(state, batch, shared=None):
        plan = plans.make(state, batch, shared)
        specs = tuple(map(plans.spec, jax.tree.leaves(state)))
        held = _map(hold, state, plan.state, specs)
        return WorkerState(held, plan.state, specs)

    def step_fn(held, batch):
        plan = plans.of(held, batch)
        state, metrics = execute(plan, held, batch)
        return dataclasses.replace(held, state=state), metrics

    return Workers(init_fn, step_fn)


def _squeezed(step: Step, axes: Axes, names: tuple[str, ...]) -> Step:
    """`step`, of a state and a batch with a leading 1 for each axis of the workers."""

    def of_one(state, batch):
        state = _map(lambda leaf, own: leaf.squeeze(_first(own)), state, axes)
        batch = jax.tree.map(lambda leaf: leaf.squeeze(_first(names)), batch)
        return step(state, batch)

    return of_one


def _mapped(
    step: Step,
    axes: dict[str, int],
    plan: _Plan,
    specs: shardings.Specs,
    state: Any,
    batch: Any,
) -> tuple[Any, Any]:
    """The state and the metrics of all workers after a step, by `vmap`."""
    leaves, structure = jax.tree.flatten(state)

    def of_one(leaves, batch):
        state = jax.tree.unflatten(structure, leaves)
        after, metrics = shardings.keeping(step, specs)(state, batch)
        return jax.tree.leaves(after), metrics

    def over(name, own):
        return 0 if name in own else None

    for name in reversed(axes):
        over_name = functools.partial(over, name)
        own = [over_name(own) for own in plan.state]
        of_one = jax.vmap(
            of_one,
            in_axes=(own, 0),
            out_axes=(own, jax.tree.map(over_name, plan.metrics)),
            axis_name=name,
            axis_size=axes[name],
        )
    after, metrics = of_one(leaves, batch)
    return jax.tree.unflatten(structure, after), metrics


def _map(function: Callable[..., Any], tree: Any, *of_leaves: Sequence[Any]) -> Any:
    """`function` of each leaf and of the entries for it in other sequences."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, map(function, leaves, *of_leaves))


def _first(axes: Any) -> tuple[int, ...]:
    """The dimensions in front, one for each axis."""
    return tuple(range(len(axes)))


def _put(leaf: jax.Array, sharding: NamedSharding) -> jax.Array:
    """`device_put`, also for typed keys on several processes."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.device_put(leaf, sharding)
    data = jax.device_put(jax.random.key_data(leaf), sharding)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))


def _shaped(
    leaf: Any, shape: tuple[int, ...], of: NamedSharding | None
) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.result_type(leaf), sharding=of)


def _is_on_host(leaf: Any) -> bool:
    """Whether an array lies in the host's memory."""
    sharding = getattr(leaf, "sharding", None)
    return getattr(sharding, "memory_kind", None) == "pinned_host"
