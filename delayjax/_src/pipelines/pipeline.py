"""The functions and the optimizers of every pipeline."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from delayjax._src.ground import transforms
from delayjax._src.pipelines.parts import Parts
from delayjax._src.pipelines.schedule import Schedule
from delayjax._src.rules.discrepancy_correction import DiscrepancyCorrectionState
from delayjax._src.rules.predict_weights import PredictWeightsState

Optimizer = transforms.Transformation | Callable[[Any], transforms.Transformation]
"""An optimizer, or a function of a stage's delay (in updates) that returns one."""

Point = Callable[[Any, Any], Any]
"""(state of the optimizer, parameters) -> the parameters that a pass reads."""


class Pipeline(NamedTuple):
    """A training step of a model in stages.

    Attributes:
        init: (params, batch, key=None) -> state. The batch is an example, of arrays or
            of shapes. Keys are given always or never.
        step: (state, batch, key=None) -> (state, loss). Compile it, and donate the
            state: jax.jit(step, donate_argnums=0).
        params: state -> the newest parameters of each stage, as `init` received them.
    """

    init: Callable[..., Any]
    step: Callable[..., tuple[Any, jax.Array]]
    params: Callable[[Any], Any]


def optimizer_of(
    parts: Parts, optimizer: Optimizer, delay: Any
) -> optax.GradientTransformationExtraArgs:
    """The optimizer of a stage whose gradients are `delay` updates late.

    It takes and returns stacked layers. The user's optimizer inside sees a list.
    """
    if callable(optimizer):
        made = optimizer.func if isinstance(optimizer, functools.partial) else optimizer
        home = getattr(made, "__module__", "").partition(".")[0]
        if home in ("optax", "delayjax"):
            raise TypeError(  # it would take the delay for its learning rate
                f"`optimizer` must be an optimizer or your function of a delay, got the"
                f" function {made.__name__}: write {home}.{made.__name__}(...)."
            )
        optimizer = optimizer(delay)
    tx = transforms.as_transformation("optimizer", optimizer)

    def init(params):
        return tx.init(parts.apart(params))

    def update(updates, state, params: Any = None, **extra_args):
        if "stale_params" in extra_args:
            extra_args["stale_params"] = parts.apart(extra_args["stale_params"])
        given = parts.apart(updates), state, parts.apart(params)
        moves, state = tx.update(*given, **extra_args)
        return parts.together(moves, params), state

    return optax.GradientTransformationExtraArgs(init, update)


def point_of(parts: Parts, point: Point | None, opt_state: Any, params: Any) -> Any:
    """The parameters that a pass reads, given the state of the optimizer."""
    if point is None:
        return params
    return parts.together(point(opt_state, parts.apart(params)), params)


def check_points_used(
    opt_state: Any, forward_point: Point | None, backward_point: Point | None
) -> None:
    """Checks that the pass for which a rule predicts weights reads them."""
    for point, kind, remedy in (
        (forward_point, PredictWeightsState, "forward_point=gradient_params"),
        (backward_point, DiscrepancyCorrectionState, "backward_point=backward_params"),
    ):
        if point is None and transforms.states_in(opt_state, kind):
            name = remedy.partition("=")[0]
            raise ValueError(f"`{name}` must be given, got None: pass {remedy}.")


def check_points(schedule: Schedule, backward_point: Point | None) -> None:
    """Checks that a backward pass has its own point only without a stash."""
    if backward_point is not None and schedule.stash:
        raise ValueError(
            "`backward_point` must be left out where the schedule stashes weights."
        )
