"""One worker's step, simulated on one device or run on many."""

import dataclasses
import itertools
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from delayjax import base
from delayjax.base import vary as vary

Step = Callable[[Any, Any], tuple[Any, Any]]
"""One worker's step, (state, batch) -> (state, metrics)."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Split:
    """A state as it is held: once what all workers share, P times what is their own."""

    state: Any  # leaves [*shape], or [workers, *shape] where they are a worker's own
    # the axes over which each leaf differs, in the leaves' order; () where it is shared
    axes: tuple[tuple[str, ...], ...] = dataclasses.field(metadata={"static": True})


class Workers(NamedTuple):
    """P workers that take the same step, as two functions."""

    init: Callable[..., Split]
    step: Callable[[Split, Any], tuple[Split, Any]]


def simulate(
    step: Step,
    num_workers: int | tuple[int, ...],
    *,
    axis_name: base.AxisName = "workers",
) -> Workers:
    """Runs one worker's step for P workers on one device, by `vmap`.

    What all workers share (parameters, the optimizer behind the mean, counters) is held
    and computed once; a worker's own (histories, outboxes, replicas) has a leading axis
    of P. Which is which follows from the step: everything starts shared, and what it
    makes differ between workers is their own.

    Args:
        step: (state, batch) -> (state, metrics) of one worker, with collectives over
            `axis_name`. Gradients are taken at `vary(params)`, of the worker's own
            loss: `pmean` what is reported, not what is differentiated.
        num_workers: P; or one number for each of several axes, (groups, members).
        axis_name: of the workers; several names for several axes.

    Returns:
        `init(state, batch, own=False)` makes the `Split` of a state: `state` is one
        worker's, made outside of any axis, `batch` one step's for all workers, leaves
        [P, ...] (arrays or shapes), and `own` says which parts differ between workers
        from the start, a prefix tree: True where replicas are trained, or the name of
        the one axis along which they differ.
        `step(split, batch)` takes one step; `jit` it with the split donated, or scan
        it. Of the metrics those that differ between workers are [P, ...].

        Memory is what is shared and P times the rest. Of several axes each is a leading
        axis of its own, in all batches and in what differs along it. Where the arrays
        of a split are placed as `shardings` says, `jit` runs it on many devices.

    Raises:
        TypeError: if `step` is no function, a number of workers no integer, or (in
            `init` and `step`) the step does not return a pair, or a state of other
            shapes or dtypes, naming the leaf.
        ValueError: if it is below 1 or does not match the names; or (in `init` and
            `step`) if a batch is not for P workers, parameters that were given to
            `vary` would differ between workers after a step, or what is shared would
            because a gradient was not taken at `vary(params)`, naming the leaf.

    Example:
        >>> def step(x, batch):
        ...     grad = jax.lax.pmean(x - batch, "workers")
        ...     return x - 0.5 * grad, jnp.abs(x - batch)
        >>> two = simulate(step, 2)
        >>> split = two.init(jnp.zeros(()), jnp.zeros(2))
        >>> split, distance = two.step(split, jnp.asarray([1.0, 3.0]))
        >>> split.state, distance
        (Array(1., dtype=float32), Array([1., 3.], dtype=float32))
    """
    _check_step(step)
    names = base.as_names(axis_name)
    counts = num_workers if isinstance(num_workers, tuple) else (num_workers,)
    counts = tuple(base.check_bound("num_workers", n, at_least=1) for n in counts)
    if len(counts) != len(names):
        raise ValueError(
            f"`num_workers` must be one number for each of the axes {names}, got"
            f" {num_workers!r}."
        )
    plans = _Plans(step, dict(zip(names, counts, strict=True)))

    def init_fn(state, batch, own=False):
        plan = plans.make(state, batch, own)

        def hold(leaf, axes):
            return jnp.broadcast_to(leaf, (*plans.sizes(axes), *leaf.shape))

        held = _map(hold, jax.tree.map(_copy, state), plan.state)
        return Split(held, plan.state)

    def step_fn(split, batch):
        plan = plans.of(split, batch)
        state, metrics = _mapped(step, plan, plans.axes)(split.state, batch)
        return Split(state, plan.state), metrics

    return Workers(init_fn, step_fn)


def run(step: Step, mesh: Mesh, *, axis_name: base.AxisName = "workers") -> Workers:
    """Runs one worker's step on every device along a mesh axis, by `shard_map`.

    The step, the split and the numbers in it are those of `simulate`.

    Args:
        step: (state, batch) -> (state, metrics) of one worker, as for `simulate`.
        mesh: devices, with an axis of this name, or several, of type Auto. Over its
            other axes parameters stay sharded as they are, and histories like them.
        axis_name: of the workers.

    Returns:
        As `simulate` does. `init` also places the split: on each device what is shared,
        and its worker's own. Place batches likewise, over `axis_name` along their first
        dimension, or they are moved at each step. Compiled for a TPU the donated split
        is updated in place; on CPU devices XLA copies a worker's own history at each
        step.

    Raises:
        TypeError, ValueError: as `simulate` does; also if `mesh` is none, has no such
            axis, or an axis of another type than Auto.

    Example:
        >>> mesh = jax.make_mesh((1,), ("workers",), axis_types=(AxisType.Auto,))
        >>> one = run(lambda x, b: (x - jax.lax.pmean(b, "workers"), {}), mesh)
        >>> split = one.init(jnp.zeros(()), jnp.ones(1))
        >>> one.step(split, jnp.ones(1))[0].state
        Array(-1., dtype=float32)
    """
    _check_step(step)
    names = base.as_names(axis_name)
    _check_mesh(mesh, names)
    plans = _Plans(step, {name: mesh.shape[name] for name in names})

    def init_fn(state, batch, own=False):
        plan = plans.make(state, batch, own)

        def place(leaf, axes):
            shape = (*plans.sizes(axes), *jnp.shape(leaf))
            spec = _spec_on(mesh, leaf)
            held = NamedSharding(mesh, P(*axes, *spec))
            if _is_on_host(leaf):  # it may not fit on a device
                whole = np.broadcast_to(np.asarray(leaf), shape)
                leaf = jax.make_array_from_callback(
                    shape, held.with_memory_kind("pinned_host"), whole.__getitem__
                )
                return jax.device_put(leaf, jax.memory.Space.Host)
            leaf = _put(_copy(leaf), NamedSharding(mesh, spec))
            if not axes:
                return leaf
            widen = jax.jit(jnp.broadcast_to, static_argnums=1, out_shardings=held)
            return widen(leaf, shape)

        return Split(_map(place, state, plan.state), plan.state)

    def step_fn(split, batch):
        plan = plans.of(split, batch)

        def of_one(state, batch):
            state = _map(
                lambda leaf, axes: leaf.squeeze(_first(axes)), state, plan.state
            )
            batch = jax.tree.map(lambda leaf: leaf.squeeze(_first(names)), batch)
            state, metrics = step(state, batch)

            def widen(leaf, axes):
                return jnp.expand_dims(leaf, _first(axes))

            return _map(widen, state, plan.state), _map(widen, metrics, plan.metrics)

        specs = plan.specs(split.state)
        state, metrics = jax.shard_map(
            of_one,
            mesh=mesh,
            in_specs=(specs[0], P(*names)),
            out_specs=specs,
            axis_names=set(names),
        )(split.state, batch)
        return Split(state, plan.state), metrics

    return Workers(init_fn, step_fn)


def one(split: Split, *, worker: int | Mapping[str, int] = 0) -> Any:
    """One worker's state, copied: the split may be donated afterwards.

    Args:
        split: of all workers.
        worker: which, 0 .. P - 1; of several axes an index for each name.

    Raises:
        TypeError: if `split` is none, or an index no integer.
        ValueError: if there is no such worker, or no index for one of the names.

    Example:
        >>> split = Split((jnp.ones(()), jnp.arange(3)), ((), ("workers",)))
        >>> one(split, worker=2)
        (Array(1., dtype=float32), Array(2, dtype=int32))
    """
    _check_split(split)
    every = {name for axes in split.axes for name in axes}
    indices = worker if isinstance(worker, Mapping) else dict.fromkeys(every, worker)
    if every - set(indices):
        raise ValueError(
            f"`worker` must have an index for each of {sorted(every)}, got {worker}."
        )

    def pick(leaf, axes):
        index = tuple(_index(indices[name]) for name in axes)
        for name, i, count in zip(axes, index, leaf.shape, strict=False):
            if not 0 <= i < count:
                raise ValueError(
                    f"`worker` must lie in 0 .. {count - 1} along {name!r}, got {i}."
                )
        return _copy(leaf[index])

    return _map(pick, split.state, split.axes)


def shardings(split: Split, mesh: Mesh) -> Split:
    """Where the leaves of a split belong on a mesh, `NamedSharding`s.

    With `jax.device_put(split, shardings(split, mesh))` the step of `simulate` runs on
    all devices of the mesh under `jit`, several workers on each if there are more.

    Args:
        split: arrays or shapes.
        mesh: devices, with the axes of the workers.

    Raises:
        TypeError, ValueError: if `split` is none, or `mesh` is none, lacks an axis, has
            one of another type than Auto, or its size does not divide the number of
            workers.

    Example:
        >>> mesh = jax.make_mesh((1,), ("workers",), axis_types=(AxisType.Auto,))
        >>> shardings(Split(jnp.ones((4, 3)), (("workers",),)), mesh).state.spec
        P('workers',)
    """
    _check_split(split)
    _check_mesh(mesh, tuple({name for axes in split.axes for name in axes}))

    def place(leaf, axes):
        for name, count in zip(axes, leaf.shape, strict=False):
            if count % mesh.shape[name]:
                raise ValueError(
                    f"`mesh` must have an axis {name!r} whose size divides the {count}"
                    f" workers, got {mesh.shape[name]}."
                )
        spec = P(*axes, *_spec_on(mesh, leaf)[len(axes) :])
        kind = "pinned_host" if _is_on_host(leaf) else None
        return NamedSharding(mesh, spec, memory_kind=kind)

    return Split(_map(place, split.state, split.axes), split.axes)


_traces = itertools.count()

Axes = tuple[tuple[str, ...], ...]
"""The axes over which each leaf of a tree differs, in the leaves' order."""


class _Plan(NamedTuple):
    """What differs between workers, and over which axes."""

    state: Axes
    metrics: Axes
    metrics_tree: Any  # its structure

    def specs(self, state: Any) -> tuple[Any, Any]:
        """`PartitionSpec`s of a state and of the metrics."""
        metrics = [P(*axes) for axes in self.metrics]
        return (
            _map(lambda _, axes: P(*axes), state, self.state),
            jax.tree.unflatten(self.metrics_tree, metrics),
        )


class _Traced(NamedTuple):
    """What an abstract trace of the step shows."""

    plan: _Plan
    varied: list[tuple[str, tuple[str, ...]]]  # leaf given to `vary`: its name and axes


class _Plans:
    """The plans of a step, one for each kind of state and batch."""

    def __init__(self, step: Step, axes: dict[str, int]):
        self.step, self.axes, self.names = step, axes, tuple(axes)
        self._known: dict[Any, _Plan] = {}

    def sizes(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """How many workers there are along each."""
        return tuple(self.axes[name] for name in axes)

    def make(self, state: Any, batch: Any, own: Any) -> _Plan:
        """The plan for one worker's state that shares most.

        Args:
            state: arrays or shapes.
            batch: of all workers.
            own: a prefix tree: what differs from the start, along which axis.
        """
        own = jax.tree.leaves(base.broadcast("own", own, state))
        axes_of = {True: self.names, False: ()} | {name: (name,) for name in self.names}
        for given in own:
            if not isinstance(given, (bool, str)) or given not in axes_of:
                raise TypeError(
                    "`own` must hold True, False or a name among"
                    f" {', '.join(self.names)}, got {given!r}."
                )
        return self._plan(state, batch, tuple(axes_of[given] for given in own))

    def of(self, split: Split, batch: Any) -> _Plan:
        """The plan by which a state has been split."""
        for (path, leaf), axes in zip(
            jax.tree.leaves_with_path(split.state), split.axes, strict=True
        ):
            if leaf.shape[: len(axes)] != self.sizes(axes):
                raise ValueError(
                    f"The split must be that of {dict(self.axes)}, got shape"
                    f" {leaf.shape} at {_name(path)}: make it with this step's `init`."
                )
        plan = self._plan(
            _map(
                lambda x, axes: _shaped(x, x.shape[len(axes) :]),
                split.state,
                split.axes,
            ),
            batch,
            split.axes,
        )
        if plan.state != split.axes:
            paths = jax.tree.leaves_with_path(split.state)
            differing = [
                _name(path)
                for (path, _), now, then in zip(
                    paths, plan.state, split.axes, strict=True
                )
                if now != then
            ]
            raise ValueError(
                f"The split does not fit the step: {', '.join(differing)} would differ"
                " between workers after it. Make the split with this step's own `init`."
            )
        return plan

    def _plan(self, state: Any, batch: Any, start: Axes) -> _Plan:
        self._check_batch(batch)
        state, batch = jax.tree.map(lambda x: _shaped(x, jnp.shape(x)), (state, batch))
        leaves, structure = jax.tree.flatten((state, batch))
        key = structure, start, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self._known:
            self._known[key] = self._make(state, batch, start)
        return self._known[key]

    def _make(self, state: Any, batch: Any, start: Axes) -> _Plan:
        axes, first = start, self._trace(state, batch, start)
        traced = first
        while (grown := self._union(axes, traced.plan.state)) != axes:
            axes, traced = grown, self._trace(state, batch, grown)
        drifted = [
            name
            for (name, now), (_, before) in zip(
                traced.varied, first.varied, strict=True
            )
            if now != before
        ]
        if drifted:
            if not all(drifted):  # what the step makes of its state
                paths = jax.tree.leaves_with_path(state)
                drifted = [
                    _name(path)
                    for (path, _), now, before in zip(paths, axes, start, strict=True)
                    if now != before
                ]
            raise ValueError(
                f"The workers' copies of {', '.join(dict.fromkeys(drifted))} would"
                " drift apart: average gradients or updates with dj.exchange.mean(...),"
                " or pass own= to `init` where each worker is to have parameters of its"
                " own."
            )
        plan = traced.plan._replace(state=axes)
        self._check_shared(plan, state, batch)
        return plan

    def _union(self, one: Axes, other: Axes) -> Axes:
        return tuple(
            tuple(name for name in self.names if name in a or name in b)
            for a, b in zip(one, other, strict=True)
        )

    def _trace(self, state: Any, batch: Any, axes: Axes) -> _Traced:
        """Takes a step on types alone, each with the axes that it varies over."""
        found = []

        def varies(leaf):
            return tuple(name for name in self.names if name in base.varies_over(leaf))

        def of_one(state, batch):
            state = _map(lambda leaf, own: leaf.squeeze(_first(own)), state, axes)
            batch = jax.tree.map(lambda leaf: leaf.squeeze(_first(self.names)), batch)
            paths = {
                id(leaf): _name(path) for path, leaf in jax.tree.leaves_with_path(state)
            }
            with base.what_is_varied() as seen:
                result = self.step(state, batch)
            _check_result(state, result)
            after, metrics = (
                tuple(map(varies, jax.tree.leaves(tree))) for tree in result
            )
            plan = _Plan(after, metrics, jax.tree.structure(result[1]))
            varied = [(paths.get(id(leaf), ""), varies(leaf)) for leaf in seen]
            found.append(_Traced(plan, varied))
            return jnp.zeros(())

        # an axis with a name of its own: `jit` inside of the step remembers its traces,
        # and `vary` would not be seen there again
        mesh = AbstractMesh(
            (*self.axes.values(), 1),
            (*self.names, f"trace {next(_traces)}"),
            axis_types=(AxisType.Auto,) * (len(self.names) + 1),
        )
        specs = _map(lambda _, own: P(*own), state, axes)
        shard_map = jax.shard_map(
            of_one,
            mesh=mesh,
            in_specs=(specs, P(*self.names)),
            out_specs=P(),
            axis_names=set(self.names),
        )
        # its mesh is not that which the caller may have set
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            jax.eval_shape(shard_map, self._held(state, axes), batch)
        return found[0]

    def _held(self, state: Any, axes: Axes) -> Any:
        """Shapes of all workers' states."""
        return _map(
            lambda x, own: _shaped(x, (*self.sizes(own), *x.shape)), state, axes
        )

    def _check_batch(self, batch: Any) -> None:
        sizes = self.sizes(self.names)
        for path, leaf in jax.tree.leaves_with_path(batch):
            if jnp.shape(leaf)[: len(sizes)] != sizes:
                raise ValueError(
                    f"`batch` must have leading axes {sizes}, the workers along"
                    f" {self.names}, got shape {jnp.shape(leaf)} at"
                    f" {_name(path)}."
                )

    def _check_shared(self, plan: _Plan, state: Any, batch: Any) -> None:
        """Checks that what is shared is so under `vmap`, which sums no gradient."""
        returned = False

        def step(state, batch):
            nonlocal returned
            returned = False
            result = self.step(state, batch)
            returned = True
            return result

        mapped = _mapped(step, plan, self.axes)
        try:
            jax.eval_shape(mapped, self._held(state, plan.state), batch)
        except ValueError as error:
            if not returned:  # the step itself failed
                raise
            raise ValueError(
                "The step sums a gradient over the workers that was not taken at"
                " workers.vary(params), which under `vmap` it would not: write"
                " jax.value_and_grad(loss)(workers.vary(params), batch)."
            ) from error


def _mapped(step: Step, plan: _Plan, axes: dict[str, int]) -> Callable:
    """(state, batch) -> (state, metrics) of all workers, by `vmap`."""

    def over(name, owners):
        return tuple(0 if name in own else None for own in owners)

    def all_workers(state, batch):
        leaves, structure = jax.tree.flatten(state)

        def of_one(leaves, batch):
            results = step(jax.tree.unflatten(structure, leaves), batch)
            return tuple(tuple(jax.tree.leaves(tree)) for tree in results)

        mapped = of_one
        for name in reversed(axes):
            mapped = jax.vmap(
                mapped,
                in_axes=(over(name, plan.state), 0),
                out_axes=(over(name, plan.state), over(name, plan.metrics)),
                axis_name=name,
                axis_size=axes[name],
            )
        after, metrics = mapped(tuple(leaves), batch)
        return (
            jax.tree.unflatten(structure, after),
            jax.tree.unflatten(plan.metrics_tree, metrics),
        )

    return all_workers


def _map(function: Callable[[Any, Any], Any], tree: Any, axes: Axes) -> Any:
    """`function` of each leaf and the axes over which it differs."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, map(function, leaves, axes))


def _first(axes: tuple[str, ...]) -> tuple[int, ...]:
    """The dimensions in front, one for each."""
    return tuple(range(len(axes)))


def _copy(leaf: Any) -> jax.Array:
    """A copy, for the split is donated and the caller's arrays are not."""
    return jnp.array(leaf, jnp.result_type(leaf), copy=True)


def _put(leaf: jax.Array, sharding: NamedSharding) -> jax.Array:
    """`device_put`, which on several processes takes no typed keys."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.device_put(leaf, sharding)
    data = jax.device_put(jax.random.key_data(leaf), sharding)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))


def _shaped(leaf: Any, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.result_type(leaf))


def _spec_on(mesh: Mesh, leaf: Any) -> P:
    """How an array is already sharded over a mesh; not at all if it is not on it."""
    sharding = getattr(leaf, "sharding", None)
    if isinstance(sharding, NamedSharding) and sharding.mesh == mesh:
        return sharding.spec
    return P()


def _is_on_host(leaf: Any) -> bool:
    """Whether an array is a part of a history in the host's memory."""
    sharding = getattr(leaf, "sharding", None)
    return getattr(sharding, "memory_kind", None) == "pinned_host"


def _index(worker: Any) -> int:
    try:
        return operator.index(worker)
    except TypeError:
        raise TypeError(f"`worker` must be an integer, got {worker!r}.") from None


def _check_step(step: Step) -> None:
    if not callable(step):
        raise TypeError(
            "`step` must be a function (state, batch) -> (state, metrics), got"
            f" {step!r}."
        )


def _check_split(split: Any) -> None:
    if not isinstance(split, Split):
        raise TypeError(
            f"`split` must be a workers.Split, got {type(split).__name__}: make it with"
            " the workers' `init`."
        )


def _check_mesh(mesh: Mesh, names: tuple[str, ...]) -> None:
    if not isinstance(mesh, Mesh):
        raise TypeError(f"`mesh` must be a jax.sharding.Mesh, got {mesh!r}.")
    for name in names:
        if name not in mesh.shape:
            raise ValueError(
                f"`mesh` must have an axis {name!r}, got {tuple(mesh.shape)}: make one"
                f" with jax.make_mesh((n,), ({name!r},), axis_types=(AxisType.Auto,))."
            )
    if any(kind != AxisType.Auto for kind in mesh.axis_types):
        raise ValueError(
            f"`mesh` must have axes of type Auto, got {mesh.axis_types}: pass"
            " axis_types=(AxisType.Auto,) * n to jax.make_mesh."
        )


def _check_result(state: Any, result: Any) -> None:
    """Checks that a step returns a state like the one that it was given."""
    if not (isinstance(result, tuple) and len(result) == 2):
        raise TypeError(
            f"`step` must return (state, metrics), got {jax.tree.structure(result)}."
        )
    if jax.tree.structure(state) != jax.tree.structure(result[0]):
        raise TypeError(
            "`step` must return a state like the one it was given, got"
            f" {jax.tree.structure(result[0])} for {jax.tree.structure(state)}."
        )

    def kind(leaf):
        return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"

    before = jax.tree.leaves_with_path(state)
    for (path, old), new in zip(before, jax.tree.leaves(result[0]), strict=True):
        if kind(old) != kind(new):
            raise TypeError(
                f"`step` must return a state of the same shapes and dtypes, got"
                f" {kind(new)} for {kind(old)} at {_name(path)}."
            )


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path) or "the root"
