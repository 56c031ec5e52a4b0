"""The state of an inner optimizer, and optimizers that cannot use a stale gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import donation, extras, refusal, trees
from delayjax._src.history import lookback
from delayjax._src.history import ring as rings

_SEARCH = (
    "it compares the gradient with the loss at today's parameters",
    "Use a learning rate that is fixed or scheduled",
)
_PAIRS = (
    "it pairs the changes of gradient and parameters, but a stale gradient was not"
    " taken at today's parameters",
    "Use an optimizer that reads the gradient alone, as optax.sgd or optax.adam do",
)
_REFUSED = {
    optax.LookaheadState: (
        "lookahead",
        "its parameters are pairs, but its gradients are not",
        "Delay the fast optimizer in it: optax.lookahead({wrapper}(fast_optimizer,"
        " ...), ...)",
    ),
    optax.contrib.SAMState: (
        "sam",
        "it takes gradients in turn at two points, and a stale gradient is from the"
        " wrong point",
        "Delay the optimizer in it: optax.contrib.sam({wrapper}(optimizer, ...),"
        " adv_optimizer, opaque_mode=True)",
    ),
    optax.ScaleByLBFGSState: ("scale_by_lbfgs", *_PAIRS),
    optax.ScaleByBacktrackingLinesearchState: (
        "scale_by_backtracking_linesearch",
        *_SEARCH,
    ),
    optax.ScaleByZoomLinesearchState: ("scale_by_zoom_linesearch", *_SEARCH),
    optax.contrib.DifferentiallyPrivateAggregateState: (
        "differentially_private_aggregate",
        "its gradients have one axis more than the parameters, for the examples",
        "Put it in front: optax.chain(differentially_private_aggregate(...),"
        " {wrapper}(...))",
    ),
}
"""States of Optax: the factory that makes each, the reason, and the remedy."""


def init(
    name: str,
    inner: optax.GradientTransformation,
    params: Any,
    *,
    wrapper: str = "delayed",
    late: bool = True,
) -> Any:
    """The state of the argument `name` of a wrapper, in unshared buffers.

    Raises:
        ValueError: if a rule that refuses is misplaced, or the gradients are `late` and
            `inner` needs fresh ones.
    """
    trees.check_numbers("params", params)
    state = inner.init(params)
    refusal.check_place(name, state)
    if late:
        check_late(name, state, wrapper=wrapper)
    return donation.unshared(state, params)


def taken_at(needed_by: str, params: Any, staleness: Any, stale_params: Any) -> Any:
    """The parameters at which the gradient with these extra arguments was taken."""
    needed_by = f"{needed_by}(keep_params=True)"
    if staleness is None and stale_params is None:
        return extras.require_params(params, needed_by)
    # another producer made it late: it was not taken at the current parameters
    remedy = "give the producer of its `staleness` keep_params=True as well"
    return extras.require(stale_params, "stale_params", needed_by, remedy)


def only_if(is_used: jax.Array, after: Any, before: Any) -> Any:
    """(updates, state) `after` if `is_used`; else zero updates, and the state `before`.

    A select would copy the history of a `delayed`. Its last push is undone instead.
    """

    def is_delayed(node):
        return isinstance(node, lookback.DelayedState)

    def select(new, old):
        if not is_delayed(new):
            return jnp.where(is_used, new, old)
        return lookback.DelayedState(
            optax.tree.where(is_used, new.staleness, old.staleness),
            _kept_if(is_used, new.gradients, old.gradients),
            _kept_if(is_used, new.origins, old.origins),
            jax.tree.map(select, new.inner_state, old.inner_state, is_leaf=is_delayed),
        )

    before = optax.tree.zeros_like(after[0]), before
    return jax.tree.map(select, after, before, is_leaf=is_delayed)


def _kept_if(is_used: jax.Array, new: rings.Ring, old: rings.Ring) -> rings.Ring:
    """The history `new` if `is_used`, else the history before the last push.

    After an undone push the item stays in the slot of the oldest item, and the next
    push overwrites it. `first` counts this oldest item as lost. If leaves have
    different depths, their oldest items differ; then the histories are selected.
    """
    depths = {slots.shape[0] for slots in jax.tree.leaves(new.slots)}
    if len(depths) != 1:
        return optax.tree.where(is_used, new, old)
    lost = old._replace(first=jnp.maximum(old.first, new.pushed - depths.pop()))
    counters = optax.tree.where(is_used, new[1:], lost[1:])
    return rings.Ring(new.slots, *counters)


def check_late(name: str, state: Any, *, wrapper: str = "delayed") -> None:
    """Checks, by the state of an optimizer, that it can use late gradients."""
    kinds = tuple(_REFUSED)
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, kinds))
    for kind, (factory, why, remedy) in _REFUSED.items():
        if any(isinstance(node, kind) for node in nodes):
            raise ValueError(
                f"`{name}` must not hold optax's {factory}: {why}."
                f" {remedy.format(wrapper=wrapper)}."
            )
