"""Boxes that name the axes of an array: Flax metadata and named arrays."""

import sys
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec


def is_box(node: Any) -> bool:
    """Whether a node is an `nnx.Variable`, `linen` metadata, or a `NamedArray`."""
    return isinstance(node, tuple(_kinds().values()))


def unboxed(tree: Any) -> Any:
    """`tree` with the content in place of each box."""

    def content(node):
        if not is_box(node):
            return node
        held = jax.tree.leaves(node, is_leaf=lambda child: child is not node)
        return held[0] if len(held) == 1 else tuple(held)

    return jax.tree.map(content, tree, is_leaf=is_box)


def stacked(tree: Any, slots: list[Any]) -> Any:
    """Slots [depth, *shape] in an item's boxes; a (*spec) becomes (None, *spec)."""
    remaining = iter(slots)

    def fill(node):
        leaves, structure = jax.tree.flatten(node)
        arrays = [next(remaining) for _ in leaves]
        whole = jax.tree.unflatten(structure, arrays)
        if not is_box(node):
            return whole
        if any(
            s.shape[1:] != leaf.shape for s, leaf in zip(arrays, leaves, strict=True)
        ):
            # the slots do not fit the box, so they are kept without it
            return arrays[0] if len(arrays) == 1 else tuple(arrays)
        return _with_leading_axis(whole, arrays)

    return jax.tree.map(fill, tree, is_leaf=is_box)


def _with_leading_axis(box: Any, slots: list[Any]) -> Any:
    kinds = _kinds()
    if isinstance(box, kinds["nnx"]):
        # nnx.spmd.add_axis would turn a PartitionSpec into a tuple of logical names
        names = box.get_metadata()
        for older in ("sharding", "sharding_names"):  # Flax reads these names first
            if older in names:
                names["out_sharding"] = names.pop(older)
        for key in {"out_sharding", "optimizer_sharding"} & names.keys():
            names[key] = _longer(names[key])
        box.set_metadata(names)
        return box
    if isinstance(box, kinds["linen"]):
        meta = sys.modules["flax.core.meta"]
        return meta.add_axis(box, 0, {meta.PARTITION_NAME: None})
    # no axis of a model has this name, so no sharding rule applies to it
    axes = [sys.modules["haliax"].Axis("delay_history", x.shape[0]) for x in slots]
    return type(box)(*slots, (*axes, *box.axes))


def _longer(spec: Any) -> Any:
    """The spec of a parameter with one more axis in front, not sharded."""
    if spec is None:
        return None
    if isinstance(spec, NamedSharding):
        return NamedSharding(spec.mesh, PartitionSpec(None, *spec.spec))
    if isinstance(spec, PartitionSpec):
        return PartitionSpec(None, *spec)
    return (None, spec) if isinstance(spec, str) else (None, *spec)


def _kinds() -> dict[str, Any]:
    """The types of boxes; () where their library is not imported."""
    types = {
        "nnx": ("flax.nnx", "Variable"),
        "linen": ("flax.core.meta", "AxisMetadata"),
        "haliax": ("haliax", "NamedArray"),
    }
    return {
        kind: getattr(sys.modules.get(module), name, ())
        for kind, (module, name) in types.items()
    }
