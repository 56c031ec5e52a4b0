"""The state of a server along a trace, and the static setup of its training."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.cluster.protocol import Aggregation
from delayjax._src.ground import donation, kinds, refusal
from delayjax._src.history import ring as rings
from delayjax._src.history import wrapped
from delayjax._src.training import versions
from delayjax._src.training.gradients import GradFn


class ReplayState(NamedTuple):
    """State of `replay`, complete for a checkpoint."""

    params: Any
    model_state: Any  # the server's newest; None where the model has none
    worker_state: Any  # of each worker, leaves [P, ...]; None where they have none
    version: jax.Array  # updates that were applied, int32 []
    versions: rings.Ring  # `Version`s; `pushed` counts refused updates too
    opt_state: Any
    each_state: Any
    aggregation_state: Any
    key: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """The static part of a replay."""

    grad_fn: GradFn
    tx: optax.GradientTransformationExtraArgs
    capacity: int  # versions kept at once, the newest among them
    width: int  # the most gradients of an update, K
    chunk: int = 1  # gradients taken at once
    full: bool = False  # every update has K gradients
    has_empty: bool = False  # some update has no gradient
    shared: bool = False  # the gradients of an update are of one version
    divisor: int | None = None  # None where it is not the same for all updates
    each: optax.GradientTransformationExtraArgs | None = None
    aggregation: Aggregation | None = None
    read_spread: float = 0.0
    slotted: bool = False  # the arrivals say in which slot each version is kept

    @property
    def dense(self) -> bool:
        """Whether each place of each chunk holds a gradient that no other chunk has."""
        return self.full and self.width % self.chunk == 0


@kinds.checked
def begin(
    setup: Setup,
    params: Any,
    key: kinds.Key,
    *,
    model_state: Any = None,
    worker_state: Any = None,
) -> ReplayState:
    """The state before the first update."""
    start = params, model_state, worker_state, key
    params, model_state, worker_state, key = jax.tree.map(donation.copied, start)
    state = ReplayState(
        params=params,
        model_state=model_state,
        worker_state=worker_state,
        version=jnp.zeros((), jnp.int32),
        versions=versions.empty(
            versions.Version((), ()), setup.capacity, slotted=setup.slotted
        ),
        opt_state=setup.tx.init(params),
        each_state=setup.each.init(params) if setup.each else (),
        aggregation_state=setup.aggregation.init(params) if setup.aggregation else (),
        key=key,
    )
    refusal.check_place("tx", state.opt_state)
    refusal.check_place("each", state.each_state, alone=False)
    if setup.capacity > 1:
        wrapped.check_late("tx", state.opt_state)
        wrapped.check_late("each", state.each_state)
    empty = versions.empty(newest(state), setup.capacity, slotted=setup.slotted)
    return donation.unshared(state._replace(versions=empty))


def newest(state: ReplayState) -> versions.Version:
    """The newest version, numbered where a rule refuses some gradients.

    Without such a rule every row of the trace makes a version.
    """
    is_numbered = refusal.refuses((state.opt_state, state.each_state))
    return versions.Version(state.params, state.version if is_numbered else ())
