"""One update of a server, from the gradients of a row of a trace."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.cluster.trace import Arrivals
from delayjax._src.ground import refusal, trees
from delayjax._src.training import chunks, model_states, sums, versions
from delayjax._src.training.state import ReplayState, Setup, newest


class ReplayReport(NamedTuple):
    """The report of an update."""

    metrics: Any  # the mean over the gradients that arrived, 0 if there is none
    staleness: jax.Array  # the mean over the gradients used, in updates, float32 []
    gradients: jax.Array  # the number of gradients used, int32 []
    ages: jax.Array  # the staleness of each gradient, -1: not used, int32 [K]


def update(
    setup: Setup, state: ReplayState, arrived: tuple[Arrivals, Any]
) -> tuple[ReplayState, ReplayReport]:
    """One update of the server."""
    arrivals, batches = arrived
    _check_rows(setup, arrivals, batches)
    versions.check_capacity(state.params, state.versions, setup.capacity)
    step = state.versions.pushed
    # write, then read: a read of the old buffer would copy the whole history
    push_arguments = newest(state), setup.capacity, arrivals.written
    state = state._replace(versions=versions.push(state.versions, *push_arguments))
    key = jax.random.fold_in(state.key, step)
    row = chunks.Row(setup, state, key, arrivals, batches)
    if setup.shared:
        shared = row.read(row.kept_at[0], jax.random.fold_in(key, 0))
        row = dataclasses.replace(row, shared=shared)
    gathered = chunks.gather(row)
    report = _counted(gathered)
    direction, aggregation_state = _direction(row, gathered)
    arguments = _extra_args(row, report, chunks.is_loss(gathered.metrics))
    updates, opt_state = setup.tx.update(
        direction, state.opt_state, state.params, **arguments
    )
    must = "`tx` must return updates like the parameters"
    trees.check_same_shapes(must, updates, state.params)
    after = state._replace(
        params=optax.apply_updates(state.params, updates),
        model_state=model_states.rounded(gathered.model_state, state.model_state),
        worker_state=gathered.worker_state,
        version=state.version + 1,
        opt_state=opt_state,
        each_state=gathered.each_state,
        aggregation_state=aggregation_state,
    )
    after, report = _without_refused(setup, state, after, gathered, report)
    fits = versions.are_kept(state.versions, arrivals, setup.capacity)
    return after, _nan_unless(fits & _fits(setup, arrivals), report)


def _fits(setup: Setup, arrivals: Arrivals) -> jax.Array:
    """Whether a row is as `setup` says of all rows of the given traces.

    A row without a gradient fits.
    """
    there = arrivals.staleness >= 0
    fits = jnp.ones((), bool)
    if setup.full:
        fits &= there.all()
    if setup.shared:
        fits &= ((arrivals.staleness == arrivals.staleness[0]) | ~there).all()
    if setup.divisor is not None:
        fits &= arrivals.divisor == setup.divisor
    return fits | ~there.any()


def _counted(gathered: chunks.Gathered) -> ReplayReport:
    """The means over the gradients of an update, and the number of used gradients."""
    total_age = jnp.maximum(gathered.ages, 0).sum(dtype=jnp.int32)
    mean_age = total_age / jnp.maximum(gathered.used, 1)
    return ReplayReport(
        metrics=sums.over(gathered.metrics, jnp.maximum(gathered.there, 1)),
        staleness=mean_age.astype(jnp.float32),
        gradients=gathered.used,
        ages=gathered.ages,
    )


def _direction(row: chunks.Row, gathered: chunks.Gathered) -> tuple[Any, Any]:
    """The mean gradient, or the aggregation's result, and the aggregation's state."""
    setup, state = row.setup, row.state
    if setup.aggregation is not None:
        last = _last_worker(row.arrivals)
        direction, aggregation_state = setup.aggregation.finish(gathered.total, last)
        must = "`aggregation` must return a direction like the parameters"
        trees.check_same_shapes(must, direction, state.params)
        direction = jax.tree.map(
            lambda wide, leaf: wide.astype(leaf.dtype), direction, state.params
        )
        return direction, aggregation_state
    divisor = row.arrivals.divisor if setup.divisor is None else setup.divisor
    if refusal.refuses(state.each_state):  # the share of the gradients used
        there, used = (jnp.maximum(n, 1) for n in (gathered.there, gathered.used))
        divisor = divisor * used.astype(jnp.float32) / there.astype(jnp.float32)
    mean = jax.tree.map(
        lambda total, leaf: (total / divisor).astype(leaf.dtype),
        *(gathered.total, state.params),
    )
    return mean, state.aggregation_state


def _last_worker(arrivals: Arrivals) -> jax.Array:
    """The worker of the last gradient of a row; -1 if there is none."""
    there = jnp.asarray(arrivals.staleness) >= 0
    place = len(there) - 1 - jnp.argmax(there[::-1])
    return jnp.asarray(arrivals.worker)[place]  # -1 in an empty place


def _extra_args(
    row: chunks.Row, report: ReplayReport, has_loss: bool
) -> dict[str, Any]:
    """The extra arguments of `tx.update`, for the gradients of an update."""
    arguments: dict[str, Any] = {"staleness": report.staleness}
    if row.shared is not None:
        arguments["staleness"] = jnp.maximum(report.ages.max(), 0)  # one age for all
        arguments["stale_params"] = row.shared.params
    if row.setup.width == 1:
        arguments["worker"] = row.arrivals.worker[0]
    if has_loss:
        arguments["value"] = report.metrics
    return arguments


# the fields that go back if `tx` refuses the mean
_MADE = ("params", "model_state", "version")


def _without_refused(
    setup: Setup,
    before: ReplayState,
    after: ReplayState,
    gathered: chunks.Gathered,
    report: ReplayReport,
) -> tuple[ReplayState, ReplayReport]:
    """The state and the report, without effects of gradients that rules refused.

    An update without a gradient makes a version, but moves nothing, unless an
    aggregation has gradients of earlier updates.
    """
    opt_state, has_any = after.opt_state, gathered.there > 0
    if refusal.refuses(before.each_state):
        has_some = (gathered.used > 0) | ~has_any
        after = _moved_where(has_some, after, before, *_MADE, "opt_state")
    if setup.has_empty and setup.aggregation is None:
        after = _moved_where(has_any, after, before, "params", "opt_state")
    if refusal.refuses(opt_state):
        applied = refusal.was_applied(opt_state)
        # the rule has kept the optimizer's state, and its own memory changes
        after = _moved_where(applied, after, before, *_MADE)
        report = report._replace(
            staleness=jnp.where(applied, report.staleness, 0.0),
            gradients=jnp.where(applied, report.gradients, 0),
            ages=jnp.where(applied, report.ages, -1),
        )
    return after, report


def _moved_where(
    moves: jax.Array, after: ReplayState, before: ReplayState, *names: str
) -> ReplayState:
    """`after`; with these fields of `before` unless the update `moves` the state."""
    new, old = ({n: getattr(state, n) for n in names} for state in (after, before))
    return after._replace(**optax.tree.where(moves, new, old))


def _nan_unless(is_kept: jax.Array, report: ReplayReport) -> ReplayReport:
    """The report, with nan unless the row fits and all its versions are kept."""
    metrics, staleness = jax.tree.map(
        lambda mean: jnp.where(is_kept, mean, jnp.nan),
        (report.metrics, report.staleness),
    )
    return report._replace(metrics=metrics, staleness=staleness)


def _check_rows(setup: Setup, arrivals: Arrivals, batches: Any) -> None:
    width = setup.width
    leaves = {"arrivals": arrivals.staleness, "batches": batches}
    for path, leaf in jax.tree.leaves_with_path(leaves):
        if jnp.shape(leaf)[:1] != (width,):
            raise ValueError(
                "An update's `arrivals` and `batches` must have a leading axis of"
                f" {width}, got shape {jnp.shape(leaf)} at {trees.path_name(path)}:"
                f" scan `step` over trace.arrivals(start, stop, width={width})."
            )
    if setup.slotted and (arrivals.slot is None or arrivals.written is None):
        raise ValueError("`arrivals` must have `slot` and `written`, got None.")
