"""Pipelines on one device: mixed versions, vertical sync, late gradients."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax._src.ground import donation, dtypes, kinds
from delayjax._src.history import delayed
from delayjax._src.history import ring as rings
from delayjax._src.pipelines.parts import Parts, Stage, check_untied, folded
from delayjax._src.pipelines.pipeline import (
    Optimizer,
    Pipeline,
    Point,
    check_points,
    check_points_used,
    optimizer_of,
    point_of,
)
from delayjax._src.pipelines.schedule import Schedule


class PipelineState(NamedTuple):
    """State of a pipeline on one device."""

    params: tuple[Stage, ...]  # the newest parameters of each stage
    opt_state: tuple[Any, ...]  # of each stage's optimizer
    past: tuple[Any, ...]  # a ring of the points that forward passes read; () if none
    step: jax.Array  # updates done, int32 []


@kinds.checked
def mixed(
    parts: Parts,
    optimizer: Optimizer,
    schedule: Schedule,
    *,
    forward_point: Point | None = None,
    backward_point: Point | None = None,
) -> Pipeline:
    """A pipeline on one device: a gradient in which stages have different versions.

    Microbatch i of update n passes stage s at its version v_s, which is
    `schedule.forward_version(i, s)`, and

        g_s(i) = dF/dw_s at (w_0^{v_0}, .., w_{S-1}^{v_{S-1}})
        w_s^{n+1} = w_s^n - U_s(mean over i of g_s(i))

    A stash keeps the weights of a forward pass for its backward pass. Without a stash
    the backward pass reads other weights b than the forward pass a:

        x_{s+1} = f_s(w_s^a, x_s)
        delta_{s-1} = (df_s/dx)^T delta_s,  g_s = (df_s/dw)^T delta_s  at (w_s^b, x_s)

    This is not the gradient of any function. A stage recomputes its inner activations
    at w^b.

    Each stage has its own optimizer, so a norm is a stage's norm. The optimizer, masks,
    labels and the functions of points see stacked layers as a list of trees, a tree for
    each layer: a leaf has the rank and the norm that it has in the model. The optimizer
    receives `staleness` (int32 [], of the update's first microbatch), `stale_params`
    (the point of that microbatch's forward pass) and `value` (the loss).

    Args:
        parts: the parts of the model.
        optimizer: an Optax transformation; or a function of the stage's mean delay in
            updates, for rules that need it, such as
            `lambda delay: dj.predict_weights(optax.adam(1e-3), delay)`.
        schedule: determines the versions. A schedule with a flush is synchronous.
        forward_point: the point that a forward pass reads in place of a stage's
            parameters, for example `dj.gradient_params`.
        backward_point: the point that a backward pass reads, if there is no stash.

    Returns:
        A pipeline whose step takes the batch of an update, leaves [B, ...], and uses it
        as M microbatches of B/M examples, one after another. The loss is their mean;
        gradients are summed in at least float32, and their mean has the parameters'
        dtype. It keeps a stage's parameters, the state of its optimizer, and, where its
        delay is not 0, as many versions as its delay + 1 (rounded up).

    Raises:
        TypeError: if the optimizer is an uncalled function of Optax or delayjax, as
            optax.adam; from JAX in `init`, if a block changes the shape of its input,
            or B is no multiple of M.
        ValueError: in `init`, if there are more stages than layers, a part is missing,
            the head returns no scalar, or a rule predicts weights that no pass reads.

    Example:
        >>> from delayjax import pipelines
        >>> parts = pipelines.Parts(
        ...     embed=lambda p, batch, key: p * batch,
        ...     block=lambda p, x, key: p * x,
        ...     head=lambda p, x, batch: jnp.mean(p * x),
        ... )
        >>> params = dict(embed=jnp.ones(()), blocks=jnp.ones(2), head=jnp.ones(()))
        >>> pipe = mixed(parts, optax.sgd(0.5), pipelines.pipedream(2))
        >>> state = pipe.init(params, jnp.ones(1))
        >>> for _ in range(2):
        ...     state, loss = pipe.step(state, jnp.ones(1))
        >>> print(pipe.params(state)["blocks"])  # stage 0 reads 1, 1; stage 1 1, 0.5
        [0.375 0.25 ]

    References:
        Narayanan et al., PipeDream, arXiv:1806.03377; without a stash: Yang et al.,
        PipeMare, arXiv:1910.05124.
    """
    check_points(schedule, backward_point)
    ages = [schedule.delays(stage).tolist() for stage in range(schedule.stages)]
    txs = [optimizer_of(parts, optimizer, np.mean(age).item()) for age in ages]
    points = forward_point, backward_point
    return _simulated(parts, txs, ages, *points, stash=schedule.stash)


@kinds.checked
def vertical_sync(
    parts: Parts,
    optimizer: Optimizer,
    schedule: Schedule,
    *,
    forward_point: Point | None = None,
) -> Pipeline:
    """A consistent gradient: all stages read the version that the first stage reads.

        g(i) = grad F(w^{v_0}),    w^{n+1} = w^n - U(mean over i of g(i))

    PipeDream's vertical sync. All stages are as late as the first, S - 1 updates.

    Args:
        parts: the parts of the model.
        optimizer: as in `mixed`.
        schedule: determines the versions of the first stage. It must stash weights.
        forward_point: as in `mixed`.

    Returns:
        A pipeline as from `mixed`.

    Raises:
        ValueError: if the schedule stashes nothing; in `init` as in `mixed`.

    Example:
        >>> from delayjax import pipelines
        >>> parts = pipelines.Parts(
        ...     embed=lambda p, batch, key: p * batch,
        ...     block=lambda p, x, key: p * x,
        ...     head=lambda p, x, batch: jnp.mean(p * x),
        ... )
        >>> params = dict(embed=jnp.ones(()), blocks=jnp.ones(2), head=jnp.ones(()))
        >>> pipe = vertical_sync(parts, optax.sgd(0.5), pipelines.pipedream(2))
        >>> state = pipe.init(params, jnp.ones(1))
        >>> for _ in range(2):
        ...     state, loss = pipe.step(state, jnp.ones(1))
        >>> print(pipe.params(state)["blocks"])  # each gradient at 1, 1
        [0. 0.]

    References:
        Narayanan et al., PipeDream, arXiv:1806.03377.
    """
    _check_stash(schedule)
    ages = [schedule.delays(0).tolist()] * schedule.stages
    txs = [optimizer_of(parts, optimizer, schedule.mean_delay(0))] * schedule.stages
    return _simulated(parts, txs, ages, forward_point)


@kinds.checked
def late(
    parts: Parts,
    optimizer: Optimizer,
    schedule: Schedule,
    *,
    forward_point: Point | None = None,
    keep_params: bool = False,
) -> Pipeline:
    """A cheap approximation: consistent gradients, which each stage uses at its delay.

        g(t) = grad F(w^t),    w_s^{t+1} = w_s^t - U_s(g_s(t - tau_s))

    Each stage's gradients wait in `dj.delayed`. It is the rule of most studies of
    delays in pipelines, and equals `mixed` only where all stages have one delay.

    Args:
        parts: the parts of the model.
        optimizer: as in `mixed`; inside of `dj.delayed`.
        schedule: determines the delays. All microbatches of an update must have one
            delay, as with M = 1 or in PipeDream-2BW. It must stash weights: a gradient
            here is taken at one point.
        forward_point: the point at which a gradient is taken, as in `mixed`. The
            function receives the state of `dj.delayed`.
        keep_params: whether to keep the parameters of each waiting gradient, for rules
            that read `stale_params`: then the history is twice as large.

    Returns:
        A pipeline as from `mixed`; it keeps delay + 1 gradients of a stage in place of
        its versions.

    Raises:
        ValueError: if the microbatches of an update have different delays, or the
            schedule stashes nothing; in `init` as in `mixed`.

    Example:
        >>> from delayjax import pipelines
        >>> parts = pipelines.Parts(
        ...     embed=lambda p, batch, key: p * batch,
        ...     block=lambda p, x, key: p * x,
        ...     head=lambda p, x, batch: jnp.mean(p * x),
        ... )
        >>> params = dict(embed=jnp.ones(()), blocks=jnp.ones(2), head=jnp.ones(()))
        >>> pipe = late(parts, optax.sgd(0.5), pipelines.pipedream(2))
        >>> state = pipe.init(params, jnp.ones(1))
        >>> for _ in range(2):
        ...     state, loss = pipe.step(state, jnp.ones(1))
        >>> print(pipe.params(state)["blocks"])  # stage 0: g(0) = 1 twice
        [0.     0.4375]

    References:
        The experiment `moe_delay` of the Marin project (a program, not a paper).
    """
    _check_stash(schedule)
    delays = [schedule.one_delay(stage) for stage in range(schedule.stages)]
    txs = [
        delayed.delayed(
            optimizer_of(parts, optimizer, delay), delay, keep_params=keep_params
        )
        for delay in delays
    ]
    now = [[0] * schedule.microbatches] * schedule.stages
    return _simulated(parts, txs, now, forward_point)


def _simulated(
    parts: Parts,
    txs: list[optax.GradientTransformationExtraArgs],
    ages: list[list[int]],
    forward_point: Point | None,
    backward_point: Point | None = None,
    stash: bool = True,
) -> Pipeline:
    """Stages whose forward passes read points of these ages, [S][M], in updates."""
    stages, count = len(ages), len(ages[0])
    deepest = [max(age) for age in ages]

    def init(params, batch, key=None):
        check_untied(params)
        cut = tuple(parts.cut(jax.tree.map(donation.copied, params), stages))
        one = jax.eval_shape(lambda b: _first(of_microbatches(b, count)), batch)
        jax.eval_shape(gradients, cut, cut, one, key)  # checks the parts
        opt_state = _each(lambda tx, stage: tx.init(stage), txs, cut)
        check_points_used(opt_state, forward_point, backward_point)
        past = _each(
            lambda stage, depth: rings.init(stage, depth + 1) if depth else (),
            *(cut, deepest),
        )
        state = PipelineState(cut, opt_state, past, jnp.zeros((), jnp.int32))
        return donation.unshared(state)

    def gradients(points, backward_points, batch, key):
        """(loss, gradients of the stages) of one microbatch."""
        passes = parts.passes(points, batch, key)
        if not stash:
            return _stage_by_stage(passes, points, backward_points)

        def loss(points):
            x = None
            for forward, point in zip(passes, points, strict=True):
                x = forward(point, x)
            return x

        return jax.value_and_grad(loss)(points)

    def step(state, batch, key=None):
        held = state.opt_state, state.params
        newest = _each(functools.partial(point_of, parts, forward_point), *held)
        backward = _each(functools.partial(point_of, parts, backward_point), *held)
        past = _each(
            lambda ring, point: rings.push(ring, point) if ring else (),
            *(state.past, newest),
        )

        def read(ring, point, age):
            age = jnp.minimum(age, state.step)
            return rings.read(ring, age, point) if ring else point

        def of_microbatch(i, batch):
            points = _each(read, past, newest, list(table[i]))
            return gradients(points, backward, batch, folded(key, i))

        def added(total, one):
            # at least float32: in bfloat16 a sum of many terms would stop growing
            gradient = jax.tree.map(dtypes.wide, of_microbatch(*one))
            return jax.tree.map(jnp.add, total, gradient), None

        table = jnp.asarray(np.transpose(ages), jnp.int32)  # [M, S]
        micro = of_microbatches(batch, count)
        mean = of_microbatch(0, _first(micro))
        if count > 1:
            rest = jnp.arange(1, count), jax.tree.map(lambda leaf: leaf[1:], micro)
            wide = jax.tree.map(dtypes.wide, mean)
            total, _ = jax.lax.scan(added, wide, rest)
            mean = jax.tree.map(
                lambda x, leaf: (x / count).astype(leaf.dtype), total, mean
            )
        loss, grads = mean

        def update(tx, grads, opt_state, params, ring, point, age):
            extra_args = {
                "staleness": jnp.minimum(age, state.step),
                "stale_params": read(ring, point, age),
                "value": loss,
            }
            moves, opt_state = tx.update(grads, opt_state, params, **extra_args)
            return optax.apply_updates(params, moves), opt_state

        pairs = _each(
            update,
            *(txs, grads, state.opt_state, state.params, past, newest, list(table[0])),
        )
        params, opt_state = zip(*pairs, strict=True)
        return PipelineState(params, opt_state, past, state.step + 1), loss

    return Pipeline(init, step, lambda state: parts.joined(state.params))


def _check_stash(schedule: Schedule) -> None:
    if not schedule.stash:
        raise ValueError(
            f"`schedule` must stash weights, got {schedule.name}: use `mixed`."
        )


def _each(function: Any, *of_stages: Any) -> tuple[Any, ...]:
    """A function of the values of each stage, one result a stage."""
    return tuple(function(*args) for args in zip(*of_stages, strict=True))


def of_microbatches(batch: Any, count: int) -> Any:
    """A batch, leaves [B, ...], as [M, B/M, ...]."""
    return jax.tree.map(lambda x: jnp.reshape(x, (count, -1, *x.shape[1:])), batch)


def _first(batches: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], batches)


def _stage_by_stage(passes: Any, forward: Any, backward: Any) -> Any:
    """(loss, gradients), where backward passes read other weights than forward."""
    inputs, x = [], None
    for run, point in zip(passes, forward, strict=True):
        inputs.append(x)
        x = run(point, x)
    loss: Any = x
    delta, grads = jnp.ones_like(loss), []
    for run, point, x in reversed(list(zip(passes, backward, inputs, strict=True))):
        _, pull = jax.vjp(run, point, x)
        grad, delta = pull(delta)
        grads.append(grad)
    return loss, tuple(reversed(grads))
