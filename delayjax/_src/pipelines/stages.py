"""The pipeline stage of each leaf, by its path, and the delay of this stage."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from delayjax._src.ground import checks, named_arrays
from delayjax._src.history.layers import Layers
from delayjax._src.pipelines.schedule import Schedule


def stage_delays(
    schedule: Schedule,
    params: Any,
    stages: Mapping[str, int] | Callable[[str], int],
    *,
    layers: Mapping[str, int] | None = None,
) -> Any:
    """The delay of each leaf by its pipeline stage, for `dj.delayed` and for rules.

    Args:
        schedule: the schedule of the pipeline, with one delay for all microbatches of
            an update. Without a stash it is the delay of the forward passes; backward
            passes read the newest weights, which a history of gradients cannot
            represent.
        params: the parameters, arrays or shapes.
        stages: the stage 0 .. S - 1 of leaves: by the beginnings of their paths, such
            as "encoder/norm", or a function of the path. Keys are joined by "/".
        layers: the beginnings of paths whose leaves hold all layers along an axis, and
            this axis. Layer l belongs to stage floor(l S / L).

    Returns:
        A tree like `params` of Python ints and of `delays.Layers`, in updates.

    Raises:
        ValueError: if a beginning has no leaf, a leaf has no stage or two, a stage is
            not in the pipeline, or a leaf has fewer layers than there are stages.

    Example:
        >>> from delayjax._src.pipelines.schedule import pipedream
        >>> params = {"embed": jnp.ones(3), "blocks": jnp.ones((4, 3)), "head": 1.0}
        >>> stage_delays(
        ...     pipedream(2), params, {"embed": 0, "head": 1}, layers={"blocks": 0}
        ... )
        {'blocks': Layers(delays=(1, 1, 0, 0), axis=0), 'embed': 1, 'head': 0}
    """
    count, along = schedule.stages, dict(layers or {})
    by_path = {} if callable(stages) else dict(stages)
    delays = [schedule.one_delay(stage) for stage in range(count)]
    bare = named_arrays.unboxed(params)
    seen: set[str] = set()

    def of_stage(stage, path):
        stage = checks.known(stage)
        if not isinstance(stage, int) or not 0 <= stage < count:
            raise ValueError(
                f"`stages` must be in 0 .. {count - 1}, got {stage!r} at {path!r}."
            )
        return delays[stage]

    def of_layers(axis, path, leaf):
        if not -jnp.ndim(leaf) <= axis < jnp.ndim(leaf):
            raise ValueError(f"`layers` must be an axis of {path!r}, got {axis}.")
        number = jnp.shape(leaf)[axis]
        if number < count:
            raise ValueError(
                f"`schedule` must have at most {number} stages, the layers at {path!r}"
                f" along axis {axis}, got {count}."
            )
        layer_delays = (delays[layer * count // number] for layer in range(number))
        return Layers(tuple(layer_delays), axis)

    def delay(keys, leaf):
        path = jax.tree_util.keystr(keys, simple=True, separator="/")
        places = [
            place for place in (*along, *by_path) if f"{path}/".startswith(f"{place}/")
        ]
        seen.update(places)
        if len(places) > 1:
            raise ValueError(f"`stages` must give {path!r} one stage, got {places}.")
        if callable(stages) and not places:
            return of_stage(stages(path), path)
        if not places:
            raise ValueError(
                f"`stages` must have a stage for {path!r}, got {[*along, *by_path]}."
            )
        (place,) = places
        if place in along:
            return of_layers(along[place], path, leaf)
        return of_stage(by_path[place], path)

    tree = jax.tree.map_with_path(delay, bare)
    if missing := [place for place in (*along, *by_path) if place not in seen]:
        raise ValueError(
            f"`stages` must be the beginnings of paths, and no leaf is at {missing}."
        )
    return tree
