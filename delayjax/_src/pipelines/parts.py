"""A model in parts, for a pipeline: an embedding, layers, and a head with the loss."""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src.ground import kinds, trees

Stage = dict[str, Any]
"""The parameters of one stage: some layers, with the embedding or the head, or both."""


@kinds.checked
@dataclasses.dataclass(frozen=True)
class Parts:
    """A model in parts, for a pipeline: embedding, blocks (layers) and head.

        x_0 = embed(p_embed, batch, key)
        x_{l+1} = block(p_l, x_l, key_l),    l = 0 .. L - 1
        loss = head(p_head, x_L, batch)

    The parameters are a mapping with these three names. Layer l belongs to stage
    floor(l S / L); the embedding belongs to the first stage and the head to the last.

    Attributes:
        embed: (parameters, batch, key) -> x, of shape [B, ...].
        block: (parameters of a layer, x, key) -> x of the same shape and dtype. Or a
            function for each layer, if the layers differ.
        head: (parameters, x, batch) -> the mean loss of the batch, a scalar.
        names: the names of the three parts in the parameters. The blocks are one tree
            of leaves [L, ...], as Flax's `nn.scan` keeps them; or a list of L trees, if
            the layers differ.

    Example:
        >>> parts = Parts(
        ...     embed=lambda p, batch, key: p * batch,
        ...     block=lambda p, x, key: p * x,
        ...     head=lambda p, x, batch: jnp.mean((p * x - 1.0) ** 2),
        ... )
        >>> two = jnp.asarray(2.0)
        >>> params = {"embed": two, "blocks": jnp.full(3, 2.0), "head": two}
        >>> float(parts.loss(params, jnp.ones(1)))  # (2^5 - 1)^2
        961.0
    """

    embed: Callable[[Any, Any, Any], Any]
    block: Callable[[Any, Any, Any], Any] | Sequence[Callable[[Any, Any, Any], Any]]
    head: Callable[[Any, Any, Any], jax.Array]
    names: tuple[str, str, str] = ("embed", "blocks", "head")

    def loss(self, params: Mapping[str, Any], batch: Any, key: Any = None) -> jax.Array:
        """The loss of the whole model.

        Args:
            params: a mapping with the three parts.
            batch: the batch, any tree.
            key: the key of this batch, or None. Layer l receives fold_in(key, l), and
                the embedding fold_in(key, L).
        """
        (stage,) = self.cut(params, 1)
        return self.through(stage, None, batch, key, 0, self.layers_of(params))

    def layers_of(self, params: Mapping[str, Any]) -> int:
        """L, the number of layers.

        Raises:
            ValueError: if the parameters have other names, or leaves of the blocks have
                different numbers of layers.
        """
        if set(params) != set(self.names):
            raise ValueError(
                f"`params` must have the parts {self.names}, got {tuple(params)}: give"
                " the names of yours, Parts(names=...)."
            )
        blocks = params[self.names[1]]
        if not is_stacked(blocks):
            block = self.block
            if isinstance(block, Sequence) and len(block) != len(blocks):
                raise ValueError(
                    f"`block` must have {len(blocks)} functions, got {len(block)}."
                )
            return len(blocks)
        sizes = {
            trees.path_name(path): jnp.shape(leaf)[:1]
            for path, leaf in jax.tree.leaves_with_path(blocks)
        }
        if len(set(sizes.values())) != 1 or () in sizes.values():
            raise ValueError(
                f"`params` must have blocks of leaves [L, ...], got sizes {sizes}."
            )
        ((layers,),) = set(sizes.values())
        return layers

    def cut(self, params: Mapping[str, Any], stages: int) -> list[Stage]:
        """The parameters of each stage.

        Raises:
            ValueError: if there are more stages than layers.
        """
        embed, blocks, head = self.names
        layers = self.layers_of(params)
        if stages > layers:
            raise ValueError(
                f"`stages` must be at most the {layers} layers, got {stages}."
            )
        # stage(l) = floor(l S / L), so stage s begins at ceil(s L / S)
        starts = [-(-stage * layers // stages) for stage in range(stages + 1)]
        cut: list[Stage] = [
            {blocks: _between(params[blocks], start, stop)}
            for start, stop in itertools.pairwise(starts)
        ]
        cut[0][embed] = params[embed]
        cut[-1][head] = params[head]
        return cut

    def joined(self, stages: Sequence[Stage]) -> dict[str, Any]:
        """Undoes `cut`."""
        embed, blocks, head = self.names
        parts = [stage[blocks] for stage in stages]
        if is_stacked(parts[0]):
            whole = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
        else:
            whole = [layer for part in parts for layer in part]
        return {embed: stages[0][embed], blocks: whole, head: stages[-1][head]}

    def apart(self, stage: Stage) -> Stage:
        """A stage with its layers as a list of trees: leaves have the model's ranks."""
        blocks = layers = stage[self.names[1]]
        if is_stacked(blocks):
            each = map(operator.itemgetter, range(_number(blocks)))
            layers = [jax.tree.map(layer, blocks) for layer in each]
        return stage | {self.names[1]: layers}

    def together(self, stage: Any, like: Stage) -> Stage:
        """Undoes `apart`: layers are stacked again where `like` has stacked layers."""
        layers = stage[self.names[1]]
        if is_stacked(like[self.names[1]]):
            layers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
        return stage | {self.names[1]: layers}

    def passes(
        self, stages: Sequence[Stage], batch: Any, key: Any
    ) -> list[Callable[[Stage, Any], Any]]:
        """The forward pass of each stage, (parameters, x) -> x, or the loss.

        Args:
            stages: parameters of the stages, for their numbers of layers.
            batch: the examples of the microbatch.
            key: the key of the microbatch, or None.
        """
        counts = [_number(stage[self.names[1]]) for stage in stages]
        starts = [0, *itertools.accumulate(counts)]

        def run(start, stage, x):
            return self.through(stage, x, batch, key, start, starts[-1])

        return [functools.partial(run, start) for start in starts[:-1]]

    def through(
        self, stage: Stage, x: Any, batch: Any, key: Any, start: Any, layers: int
    ) -> Any:
        """One stage's forward pass: x of its last layer, or the loss.

        Args:
            stage: the parameters of the stage.
            x: the output of the stage before; the first stage ignores it.
            batch: the examples of the microbatch.
            key: the key of the microbatch, or None.
            start: the number of the stage's first layer; may be traced.
            layers: L, the number of layers of the model.
        """
        embed, blocks, head = self.names
        if embed in stage:
            x = self.embed(stage[embed], batch, folded(key, layers))
        x = self.through_blocks(stage[blocks], x, key, start)
        if head not in stage:
            return x
        return self.head(stage[head], x, batch)

    def through_blocks(self, blocks: Any, x: Any, key: Any, start: Any) -> Any:
        """The layers of one stage, the first of which has the number `start`."""
        block: Any = self.block
        if not is_stacked(blocks):
            for number, layer in enumerate(blocks, start):
                one = block[number] if isinstance(block, Sequence) else block
                x = one(layer, x, folded(key, number))
            return x

        def one_layer(x, layer):
            parameters, number = layer
            return block(parameters, x, folded(key, number)), None

        numbers = start + jnp.arange(_number(blocks))
        return jax.lax.scan(one_layer, x, (blocks, numbers))[0]


def is_stacked(blocks: Any) -> bool:
    """Whether the layers are one tree of leaves [L, ...], not a list of trees."""
    if type(blocks) is tuple:  # of layers or of leaves, which cannot be decided
        raise TypeError("`blocks` must be one tree or a list of trees, got a tuple.")
    return not isinstance(blocks, list)


def _between(blocks: Any, start: int, stop: int) -> Any:
    """The layers start .. stop - 1."""
    if not is_stacked(blocks):
        return list(blocks[start:stop])
    return jax.tree.map(lambda leaf: leaf[start:stop], blocks)


def _number(blocks: Any) -> int:
    return jax.tree.leaves(blocks)[0].shape[0] if is_stacked(blocks) else len(blocks)


def check_untied(params: Any) -> None:
    """Checks that no array is in `params` twice, because the copies would differ."""
    seen: dict[int, Any] = {}
    for path, leaf in jax.tree.leaves_with_path(params):
        first = seen.setdefault(id(leaf), path)
        if first is not path and isinstance(leaf, jax.Array | np.ndarray):
            one, other = map(trees.path_name, (first, path))
            raise ValueError(
                f"`params` must not hold an array twice, got one at {one} and {other}:"
                " copy it, or train tied weights with `delayed` and `stage_delays`."
            )


def folded(key: Any, number: Any) -> Any:
    """The key of a layer, None where there is none."""
    return None if key is None else jax.random.fold_in(key, number)
