"""A delay or number for each layer, where a leaf has many layers along an axis."""

import dataclasses
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src.ground import checks, dtypes, named_arrays, trees


class Run(NamedTuple):
    """Neighboring layers of one delay: start .. stop - 1."""

    start: int
    stop: int
    delay: int


@dataclasses.dataclass(frozen=True)
class Layers:
    """A delay for each layer of leaves that hold all layers along one axis.

    Flax's `nn.scan` and MaxText's `scan_layers` keep each parameter of all blocks in
    one leaf [L, ...]. Layer l of such a leaf is late by delays[l]. A transformation
    receives the staleness of the leaf as int32 [L, 1, ..., 1].

    The leaf is kept as one history for each run of neighboring layers with one delay,
    of the depth that the run needs. A step costs one write and one read of the leaf,
    for any delays. On a TPU several runs cost one more copy of the leaf, because XLA
    joins in memory the parts that it has read. A leaf that is sharded along the layers'
    axis would be cut across devices: shard it along another axis.

    Args:
        delays: the delay of each layer, in steps: L Python ints.
        axis: the axis of the layers.

    Raises:
        ValueError: if `delays` is empty or an entry is not a non-negative int; in
            `init` and `update`, if a leaf has another number of layers.

    Example:
        >>> import optax
        >>> from delayjax import delayed, delays
        >>> tx = delayed(optax.sgd(1.0), delays.Layers((1, 0), axis=0))
        >>> state = tx.init(jnp.zeros((2, 1)))
        >>> for grad in (1.0, 2.0, 3.0):
        ...     update, state = tx.update(jnp.full((2, 1), grad), state)
        ...     print(update.ravel(), state.staleness.ravel())
        [-1. -1.] [0 0]
        [-1. -2.] [1 0]
        [-2. -3.] [1 0]
    """

    delays: Sequence[int]
    axis: int = 0

    def __post_init__(self):
        delays = tuple(self.delays)
        if not delays:
            raise ValueError("`delays` must hold a delay for each layer, got none.")
        bounds = tuple(checks.check_bound("delays", delay) for delay in delays)
        object.__setattr__(self, "delays", bounds)
        object.__setattr__(self, "axis", operator.index(self.axis))


def runs_of(layers: Layers) -> list[Run]:
    """The runs of neighboring layers with one delay, in order."""
    runs, start = [], 0
    for delay, group in itertools.groupby(layers.delays):
        stop = start + len(list(group))
        runs.append(Run(start, stop, delay))
        start = stop
    return runs


def column(layers: Layers, values: Any, leaf: Any) -> Any:
    """Values of the layers, [L], in the shape [L, 1, ...], to multiply a leaf."""
    shape = [1] * jnp.ndim(leaf)
    shape[layers.axis] = len(layers.delays)
    return values.reshape(shape)


def per_leaf(name: str, delay: Any, like: Any) -> Any:
    """The delay or the `Layers` of each leaf, from a prefix of a tree.

    Raises:
        ValueError: if `delay`, the argument `name`, is no prefix, or a leaf has another
            number of layers than its `Layers`.
    """
    bare = named_arrays.unboxed(like)
    repeated = trees.broadcast(name, delay, bare)
    leaves = jax.tree.leaves_with_path(bare)
    each = jax.tree.leaves(repeated, is_leaf=trees.is_function)
    for (path, leaf), layers in zip(leaves, each, strict=True):
        if isinstance(layers, Layers):
            _check_layers(layers, path, jnp.shape(leaf))
    return repeated


def checked_numbers(name: str, numbers: Any) -> Any:
    """The argument `name`, a tree of numbers and of `Layers`, without boxes."""

    def checked(one):
        is_layers = isinstance(one, Layers)
        return one if is_layers else checks.check_scalar(name, one)

    numbers = named_arrays.unboxed(numbers)
    return jax.tree.map(checked, numbers, is_leaf=trees.is_function)


def numbers_of(name: str, numbers: Any, like: Any) -> Any:
    """The number of each leaf of `like`, without boxes: real [], or [L, 1, ...].

    Raises:
        ValueError: if `numbers` is no prefix of `like`, or a leaf has another number of
            layers than its `Layers`.
    """
    bare = named_arrays.unboxed(like)

    def array(number, leaf):
        if isinstance(number, Layers):
            number = column(number, np.asarray(number.delays), leaf)
        return jnp.asarray(number, dtypes.real_dtype(leaf))

    by_leaf = per_leaf(name, numbers, bare)
    return jax.tree.map(array, by_leaf, bare, is_leaf=trees.is_function)


def has_layers(tree: Any) -> bool:
    """Whether a tree of delays has a `Layers` in it."""
    leaves = jax.tree.leaves(tree, is_leaf=trees.is_function)
    return any(isinstance(leaf, Layers) for leaf in leaves)


class Split:
    """Cuts trees like `like`: a leaf with `Layers` becomes a tuple of its runs.

    Attributes:
        delays: the delay of each leaf, and of each run.
    """

    def __init__(self, delay: Any, like: Any):
        """Takes a prefix tree of delays, and the whole tree; see `per_leaf`."""
        self._per_leaf, self._like = per_leaf("delay", delay, like), like
        self.delays = self._over(
            lambda layers, _: tuple(run.delay for run in runs_of(layers)),
            lambda layers, _: layers,
        )

    def cut(self, tree: Any) -> Any:
        """Cuts a tree like `like`."""

        def cut(layers, node):
            return tuple(
                jax.tree.map(
                    lambda leaf, run=run: _layers(leaf, run, layers.axis), node
                )
                for run in runs_of(layers)
            )

        return self._over(cut, lambda layers, node: node, tree)

    def joined(self, tree: Any) -> Any:
        """Undoes `cut`."""

        def joined(layers, runs):
            return jax.tree.map(
                lambda *leaves: jnp.concatenate(leaves, layers.axis), *runs
            )

        return self._over(joined, lambda layers, node: node, tree)

    def by_layer(self, ages: Any) -> Any:
        """The ages of layers from the ages of runs: int32 [L, 1, ...] with `Layers`."""

        def by_layer(layers, runs, node):
            counts = np.asarray([run.stop - run.start for run in runs_of(layers)])
            each = jnp.repeat(
                jnp.stack(jax.tree.leaves(runs)),
                counts,
                total_repeat_length=counts.sum(),
            )
            # without its box, whose names would shard the axes of length 1
            bare = named_arrays.unboxed(node)
            return jax.tree.map(lambda leaf: column(layers, each, leaf), bare)

        return self._over(by_layer, lambda layers, age, node: age, ages, self._like)

    def by_run(self, ages: Any) -> Any:
        """Undoes `by_layer`."""

        def by_run(layers, node):
            return tuple(
                jax.tree.map(lambda age, run=run: age.reshape(-1)[run.start], node)
                for run in runs_of(layers)
            )

        return self._over(by_run, lambda layers, age: age, ages)

    def _over(
        self, layered: Callable[..., Any], whole: Callable[..., Any], *parts: Any
    ) -> Any:
        """Applies `layered` to leaves with `Layers`, and `whole` to other leaves."""

        def of_leaf(node, layers, *parts):
            function = layered if isinstance(layers, Layers) else whole
            return function(layers, *(parts or (node,)))

        return jax.tree.map(
            of_leaf, self._like, self._per_leaf, *parts, is_leaf=named_arrays.is_box
        )


def _layers(leaf: Any, run: Run, axis: int) -> jax.Array:
    """The layers of a run; zeros where `leaf` is only a shape."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        leaf = jnp.zeros_like(leaf)
    return jax.lax.slice_in_dim(leaf, run.start, run.stop, axis=axis)


def _check_layers(layers: Layers, path: Any, shape: tuple[int, ...]) -> None:
    inside = -len(shape) <= layers.axis < len(shape)
    if not inside or shape[layers.axis] != len(layers.delays):
        raise ValueError(
            f"`Layers` has {len(layers.delays)} delays along axis {layers.axis}, but a"
            f" leaf has shape {list(shape)} at {trees.path_name(path)}."
        )
