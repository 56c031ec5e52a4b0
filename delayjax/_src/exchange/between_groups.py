"""The mean over groups of workers, one step late; each member sends a share."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax

from delayjax._src.exchange.overlapped import Held, one_step_late
from delayjax._src.ground import (
    axes,
    collectives,
    kinds,
    transforms,
    xla,
)


@kinds.checked
def late_between_groups(
    inner: transforms.Transformation,
    num_members: kinds.PositiveInt,
    *,
    axis_name: tuple[str, str] = ("groups", "members"),
    keep_params: bool = False,
    bucket_bytes: int = collectives.BUCKET_BYTES,
) -> optax.GradientTransformationExtraArgs:
    """Averages gradients within a group at once, and between groups one step late.

        update_t = inner( (1/P) sum_p g_p[t - 1] ),    update_0 = 0

    It is for groups with fast links inside and slow links between them, such as the
    slices of a TPU pod or hosts of GPUs. Of a gradient of N numbers, each of the M
    members of a group sends N / M over the slow links:

    1. over the fast links, the members reduce-scatter their gradients of step t: each
       has the sum of one share.
    2. meanwhile, over the slow links, each member and its peers in the other groups sum
       their shares of step t - 1.
    3. over the fast links, the members all-gather the sums.

    `overlapped_mean(inner, axis_name=axis_name)` makes the same updates. So does
    `mean(overlapped_mean(inner, axis_name="groups"), axis_name="members")`, but there
    each member sends all N numbers over the slow links.

    Args:
        inner: the transformation behind the mean. It receives the extra arguments that
            `overlapped_mean` passes on, averaged over all workers.
        num_members: M, the size of the second axis.
        axis_name: the axis of the groups, and the axis of the members of a group.
        keep_params: as in `overlapped_mean`.
        bucket_bytes: within a group, smaller leaves are joined and sent together, as in
            `mean`. Between groups all shares of one dtype are joined.

    Returns:
        A transformation whose state holds a share of one gradient tree for each worker,
        the state of `inner`, and with `keep_params` one parameter tree. A share is cut
        along the first dimension of a leaf that M divides. Leaves of fewer than 2^14
        numbers, leaves without such a dimension, and leaves that are sharded over
        Explicit axes, are held and sent whole. A step copies the shares once, to join
        them.

    Raises:
        ValueError: in `update`, if the axis of the members has another size than
            `num_members`, or a gradient is already summed over workers.

    Example:
        >>> tx = late_between_groups(optax.sgd(1.0), 2)
        >>> def two_steps(grad):
        ...     first, state = tx.update(grad, tx.init(grad))
        ...     return first, tx.update(grad, state)[0]
        >>> for name in ("members", "groups"):
        ...     two_steps = jax.vmap(two_steps, axis_name=name)
        >>> two_steps(jnp.asarray([[1.0, 3.0], [5.0, 7.0]]))[1]
        Array([[-4., -4.],
               [-4., -4.]], dtype=float32)

    References:
        Rajbhandari, Rasley, Ruwase and He, ZeRO, SC 2020, arXiv:1910.02054, for the
        shares.
    """
    name = "exchange.late_between_groups"
    groups, members = _two(axis_name)

    def empty(params):
        def nothing(p):
            zeros = jnp.zeros_like(p)
            if (along := _cut(zeros, num_members)) is None:
                return axes.vary(zeros, axis_name=groups)
            size = zeros.shape[along] // num_members
            share = jax.lax.slice_in_dim(zeros, 0, size, axis=along)
            return axes.vary(share, axis_name=(groups, members))

        return jax.tree.map(nothing, params)

    def send(held, fresh, params):
        collectives.check_fresh(name, fresh, (groups, members))
        if (size := collectives.workers_of(members)) != num_members:
            raise ValueError(
                f"`num_members` must be {size}, the size of the axis, got"
                f" {num_members}."
            )
        fresh = optax.tree.cast_like(fresh, held.gradient)
        leaves, structure = jax.tree.flatten(fresh)
        shares = jax.tree.leaves(held.gradient)
        cuts = [_differs(*one) for one in zip(leaves, shares, strict=True)]
        fresh = _scattered(leaves, cuts, members, bucket_bytes)
        fresh = [g / num_members for g in fresh]
        # each worker has its own age and loss, so the mean of the group comes first
        age_and_value = collectives.sums((held.age, held.value), members, bucket_bytes)
        age_and_value = jax.tree.map(lambda x: x / num_members, age_and_value)
        sent = shares, age_and_value
        # joined, because all are known at the start and needed at the end, and XLA
        # hides one transfer between slices better than several
        (came, (age, value)), fresh = collectives.sums_beside(
            fresh, sent, groups, sys.maxsize
        )
        num_groups = collectives.workers_of(groups)
        mean = [g / num_groups for g in _gathered(came, cuts, members)]
        age = jnp.int32(0) if age is None else age / num_groups
        value = None if value is None else value / num_groups
        mean, fresh = (jax.tree.unflatten(structure, tree) for tree in (mean, fresh))
        return Held(mean, age, value), fresh

    return one_step_late(name, inner, empty, send, (groups, members), keep_params)


def _two(axis_name: Any) -> tuple[str, ...]:
    names = axes.as_names(axis_name)
    if len(names) != 2:
        raise ValueError(
            f"`axis_name` must name two axes, groups and members, got {axis_name!r}."
        )
    return names


def _cut(leaf: Any, num_members: int) -> int | None:
    """The dimension along which the members share a leaf; None if it is whole."""
    if leaf.size < xla.SMALL:
        return None
    if any(jax.typeof(leaf).sharding.spec.partitions):
        return None  # JAX scatters nothing that is sharded over Explicit axes
    fits = (i for i, size in enumerate(leaf.shape) if size % num_members == 0)
    return next(fits, None)


def _differs(leaf: Any, share: Any) -> int | None:
    """The dimension along which a share was cut; None if it is the whole leaf."""
    sizes = enumerate(zip(leaf.shape, share.shape, strict=True))
    return next((i for i, (whole, part) in sizes if whole != part), None)


def _scattered(
    leaves: list[jax.Array], cuts: list[int | None], axis_name: str, bucket_bytes: int
) -> list[jax.Array]:
    """Each leaf summed over the members: a member's own share, or the whole leaf."""
    small = [g for g, along in zip(leaves, cuts, strict=True) if along is None]
    whole = iter(collectives.sums(small, axis_name, bucket_bytes))
    return [
        next(whole) if along is None else xla.psum_scatter(g, axis_name, along)
        for g, along in zip(leaves, cuts, strict=True)
    ]


def _gathered(
    leaves: list[jax.Array], cuts: list[int | None], axis_name: str
) -> list[jax.Array]:
    """Whole leaves, from the shares of all members."""

    def gathered(leaf, along):
        if along is None:
            return leaf
        return collectives.whole(leaf, axis_name, along)

    return [gathered(*one) for one in zip(leaves, cuts, strict=True)]
