"""The models of all workers on each worker."""

from typing import Any

import jax

from delayjax._src.ground import axes


def gather(tree: Any, axis_name: str) -> Any:
    """The trees of all workers, leaves [P, *shape], the same on each worker."""
    # under `vmap` their type is "varying", although they have no batch axis
    manual = axis_name in jax.sharding.get_abstract_mesh().manual_axes
    to = "invarying" if manual else "varying"
    tree = axes.vary(tree, axis_name=axis_name)
    return jax.tree.map(lambda x: jax.lax.all_gather(x, axis_name, to=to), tree)
