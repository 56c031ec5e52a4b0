"""A pipeline without a flush on several devices, with a stage on each."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from delayjax._src.ground import axes, kinds, shardings, trees
from delayjax._src.history import ring as rings
from delayjax._src.pipelines.parts import (
    Parts,
    check_untied,
    folded,
    is_stacked,
)
from delayjax._src.pipelines.pipeline import (
    Optimizer,
    Pipeline,
    Point,
    check_points,
    check_points_used,
    optimizer_of,
    point_of,
)
from delayjax._src.pipelines.schedule import Schedule, pipedream


class DevicePipelineState(NamedTuple):
    """State of a pipeline on devices. Each leaf has a leading axis of the stages."""

    params: Any  # of each stage; each stage holds an embedding and a head
    opt_state: Any
    past: Any  # a ring of the points that forward passes read; () without a stash
    inputs: rings.Ring  # what a stage's forward passes received, [2S - 1, B, ...]
    batches: rings.Ring  # the last batches, and the keys, [2S - 1, B, ...]
    received: Any  # from the stage before, to be used in the next tick, [B, ...]
    cotangent: Any  # from the stage after, to be used in the next tick, [B, ...]
    losses: jax.Array  # of the last S ticks, the newest last, [S]; 0 if unknown
    tick: jax.Array  # ticks done, int32


@kinds.checked
def run(
    parts: Parts,
    optimizer: Optimizer,
    schedule: Schedule,
    mesh: Mesh,
    *,
    axis_name: str = "stages",
    forward_point: Point | None = None,
    backward_point: Point | None = None,
) -> Pipeline:
    """Runs a pipeline on a mesh axis, a stage on each device, without a flush.

    In tick t, stage s takes the forward pass of microbatch t - s and the backward pass
    of microbatch t - 2(S - 1) + s, updates its weights, and sends the activation to the
    next stage and the cotangent to the stage before, to be used in the next tick. So a
    gradient is 2(S - 1 - s) updates late, and no device waits for a microbatch. The
    numbers are the same as with `mixed` and this schedule; stage s makes update i in
    tick i + 2(S - 1) - s. A backward pass recomputes the stage's inner activations.

    Args:
        parts: the parts of the model. Layers must be stacked, and S must divide L.
        optimizer: as in `mixed`. A function receives the stage's delay as a traced
            int32 []: its rules are the same for all stages. To update after every M
            microbatches, pass `optax.MultiSteps`. Rules inside of it receive staleness
            and delay in microbatches: divide both by M.
        schedule: `pipedream(S, in_flight="full")`, with a stash or without, or
            `pipemare(S, 1)`.
        mesh: a mesh with the axis of the stages. Over all of its other axes the batch
            is split, and gradients are averaged; parameters are not split over them.
        axis_name: the axis of the stages.
        forward_point: as in `mixed`.
        backward_point: as in `mixed`.

    Returns:
        A pipeline whose step is a tick. Its loss is the loss of the batch of tick t - S
        + 1, or NaN in earlier ticks: turn on `jax_debug_nans` after them. Since all
        devices run one program, each keeps 2S - 1 inputs of a stage, as many batches,
        as many points with a stash (the schedule needs S on average), and an embedding
        and a head. Only the embedding of the first stage and the head of the last are
        used; all others are 0, and so are their gradients.

    Raises:
        ValueError: if the schedule is another one, or the mesh has no such axis or
            another number of stages; in `init` if layers are not stacked, S does not
            divide L, parameters are sharded over another axis, or (from JAX) the batch
            cannot be split; in `step` if the batch has other sizes than in `init`.

    Example:
        >>> from delayjax import pipelines
        >>> parts = pipelines.Parts(
        ...     embed=lambda p, batch, key: p * batch,
        ...     block=lambda p, x, key: p * x,
        ...     head=lambda p, x, batch: jnp.mean(p * x),
        ... )
        >>> params = dict(embed=jnp.ones(()), blocks=jnp.ones(2), head=jnp.ones(()))
        >>> mesh = jax.make_mesh((1,), ("stages",))
        >>> schedule = pipelines.pipedream(1, in_flight="full")
        >>> pipe = run(parts, optax.sgd(0.5), schedule, mesh)
        >>> state = pipe.init(params, jnp.ones(1))
        >>> state, loss = jax.jit(pipe.step)(state, jnp.ones(1))
        >>> print(loss, pipe.params(state)["blocks"])
        1.0 [0.5 0.5]

    References:
        Narayanan et al., PipeDream, arXiv:1806.03377; Yang et al., PipeMare,
        arXiv:1910.05124. The ticks are ours.
    """
    check_points(schedule, backward_point)
    _check_schedule(schedule, mesh.shape.get(axis_name), axis_name)
    # with Auto axes arrays need no particular sharding for `shard_map`
    mesh = Mesh(mesh.devices, mesh.axis_names)
    points = forward_point, backward_point
    stages = _Stages(parts, optimizer, schedule, mesh, axis_name, *points)
    return Pipeline(stages.init, stages.step, stages.newest)


@dataclasses.dataclass(frozen=True, eq=False)
class _Stages:
    """The functions of a pipeline; `of_stage`, `tick` and others run on each device."""

    parts: Parts
    optimizer: Optimizer
    schedule: Schedule
    mesh: Mesh
    axis_name: str
    forward_point: Point | None
    backward_point: Point | None

    @property
    def data(self) -> tuple[str, ...]:
        """The axes over which batches are split."""
        return tuple(name for name in self.mesh.axis_names if name != self.axis_name)

    def varied(self, tree: Any) -> Any:
        """A tree that differs from device to device."""
        return axes.vary(tree, axis_name=self.mesh.axis_names)

    def place(self) -> tuple[jax.Array, jax.Array]:
        """(number of this stage, its delay)."""
        stage = jax.lax.axis_index(self.axis_name)
        return stage, 2 * (self.schedule.stages - 1 - stage)

    def init(self, params: Any, batch: Any, key: Any = None) -> DevicePipelineState:
        """The state of all stages."""
        embed, blocks, head = self.parts.names
        _check_layers(self.parts, params)
        check_untied(params)
        _check_whole(params, self.mesh, self.axis_name)
        jax.eval_shape(self.parts.loss, params, batch, key)  # checks the parts
        shapes = jax.eval_shape(lambda tree: tree, batch)
        batch = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        lie = {embed: P(), blocks: P(self.axis_name), head: P()}
        made = jax.shard_map(
            self.of_stage,
            mesh=self.mesh,
            in_specs=(lie, P(self.data), P()),
            out_specs=_specs(self.axis_name, self.data),
        )
        return jax.jit(made)(dict(params), batch, key)

    def of_stage(self, params: Any, batch: Any, key: Any) -> DevicePipelineState:
        """The first state of a stage."""
        (embed, _, head), stages = self.parts.names, self.schedule.stages
        params = axes.vary(params, axis_name=self.axis_name)
        stage = self.place()[0]
        # the copies of other stages are 0, so that they change no norm of a stage
        params[embed] = _or_zeros(stage == 0, params[embed])
        params[head] = _or_zeros(stage == stages - 1, params[head])
        batch, kept = self.varied(batch), 2 * stages - 1
        x = jax.eval_shape(self.parts.embed, params[embed], batch, key)
        loss = jax.eval_shape(self.parts.head, params[head], x, batch)
        x = self.varied(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), x))
        tx = optimizer_of(self.parts, self.optimizer, self.place()[1])
        opt_state = tx.init(params)
        check_points_used(opt_state, self.forward_point, self.backward_point)
        state = DevicePipelineState(
            params=params,
            opt_state=opt_state,
            past=rings.init(params, kept) if self.schedule.stash else (),
            inputs=rings.init(x, kept),
            batches=rings.init((batch, _bits(key)), kept),
            received=x,
            cotangent=jax.tree.map(jnp.copy, x),
            losses=jnp.zeros(stages, loss.dtype),
            tick=jnp.zeros((), jnp.int32),
        )
        return _widened(state)

    def step(self, state: DevicePipelineState, batch: Any, key: Any = None) -> Any:
        """(state, loss) after a tick."""
        specs = _specs(self.axis_name, self.data)
        on_all = jax.shard_map(
            self.tick,
            mesh=self.mesh,
            in_specs=(specs, P(self.data), P()),
            out_specs=(specs, P()),
        )
        return on_all(state, batch, key)

    def tick(self, state: DevicePipelineState, batch: Any, key: Any) -> Any:
        """A forward pass, a backward pass and an update of this stage."""
        held, (stage, late) = _narrowed(state), self.place()
        impl = None if key is None else jax.random.key_impl(key)
        # the key of the only microbatch of an update, as in `mixed`
        fresh = self.varied(batch), _bits(folded(key, 0))
        batches = rings.push(held.batches, fresh)
        inputs = rings.push(held.inputs, held.received)

        at = held.opt_state, held.params
        newest = point_of(self.parts, self.forward_point, *at)
        seen = rings.read(batches, stage, fresh)
        sent, _ = self.forward(self.varied(newest), held.received, seen, impl)

        if self.schedule.stash:
            past = rings.push(held.past, newest)
            point = rings.read(past, late, newest)
        else:
            past: Any = ()
            point = point_of(self.parts, self.backward_point, *at)
        x = rings.read(inputs, late, held.received)
        seen = rings.read(batches, stage + late, fresh)
        (_, loss), pull = jax.vjp(
            lambda p, x: self.forward(p, x, seen, impl), self.varied(point), x
        )
        # the last stage receives a cotangent of zeros, and the others have no loss
        grads, sent_back = pull((held.cotangent, self.varied(jnp.ones_like(loss))))
        if self.data:
            grads, loss = jax.lax.pmean((grads, loss), self.data)

        # a gradient that arrives at stage s is of the loss of tick t - S + 1 + s
        losses = jnp.append(held.losses, loss)
        params, opt_state = self.updated(held, grads, point, losses[stage + 1])
        onward = [(i, i + 1) for i in range(self.schedule.stages - 1)]
        back = [(after, before) for before, after in onward]
        # every device gets the loss of the last stage
        last = self.schedule.stages - 1
        is_known = held.tick >= last
        shown = jnp.where(is_known, loss, jnp.nan)
        shown = jax.lax.psum(jnp.where(stage == last, shown, 0.0), self.axis_name)
        state = DevicePipelineState(
            params=params,
            opt_state=opt_state,
            past=past,
            inputs=inputs,
            batches=batches,
            received=jax.lax.ppermute(sent, self.axis_name, onward),
            cotangent=jax.lax.ppermute(sent_back, self.axis_name, back),
            losses=jnp.append(held.losses[1:], jnp.where(is_known, shown, 0.0)),
            tick=held.tick + 1,
        )
        return _widened(state), shown

    def forward(self, point: Any, x: Any, seen: Any, impl: Any) -> Any:
        """(activation, loss) of this stage: the loss of the last stage, else 0."""
        embed, blocks, head = self.parts.names
        (batch, bits), stage, stages = seen, self.place()[0], self.schedule.stages
        key = bits
        if bits is not None:
            key = jax.random.wrap_key_data(self.varied(bits), impl=impl)
        if math.prod(self.mesh.shape[name] for name in self.data) > 1:
            key = folded(key, jax.lax.axis_index(self.data))
        layers = jax.tree.leaves(point[blocks])[0].shape[0]
        of_embed = folded(key, stages * layers)
        x = jax.lax.cond(
            stage == 0,
            lambda: self.varied(self.parts.embed(point[embed], batch, of_embed)),
            lambda: x,
        )
        x = self.parts.through_blocks(point[blocks], x, key, stage * layers)

        def loss():
            return self.varied(self.parts.head(point[head], x, batch))

        return x, jax.lax.cond(
            stage == stages - 1,
            loss,
            lambda: self.varied(jnp.zeros((), jax.eval_shape(loss).dtype)),
        )

    def updated(
        self, held: DevicePipelineState, grads: Any, point: Any, loss: jax.Array
    ) -> tuple[Any, Any]:
        """(parameters, state of the optimizer), once a gradient has come back."""
        stage, late = self.place()
        done = held.tick - late - stage  # updates of this stage; below 0 it waits
        before = held.params, held.opt_state

        def after():
            tx = optimizer_of(self.parts, self.optimizer, late)
            moves, opt_state = tx.update(
                *(grads, held.opt_state, held.params),
                staleness=jnp.clip(done, 0, late),
                stale_params=point,
                value=loss,
            )
            moved = optax.apply_updates(held.params, moves), opt_state
            return axes.typed_like(moved, before)

        return jax.lax.cond(done >= 0, after, lambda: before)

    def newest(self, state: DevicePipelineState) -> dict[str, Any]:
        """The parameters of all stages, as `init` received them."""
        embed, blocks, head = self.parts.names
        params = state.params
        return {
            embed: jax.tree.map(lambda leaf: leaf[0], params[embed]),
            # [S, L/S, ...] -> [L, ...]
            blocks: jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), params[blocks]),
            head: jax.tree.map(lambda leaf: leaf[-1], params[head]),
        }


def _or_zeros(used: jax.Array, tree: Any) -> Any:
    """A tree where it is used, and zeros elsewhere."""
    return jax.tree.map(lambda x: jnp.where(used, x, jnp.zeros_like(x)), tree)


def _specs(axis_name: str, data: tuple[str, ...]) -> Any:
    """The specs of the state: sharded by stage, and activations also by data."""
    stage: Any = P(axis_name)
    flowing, rows = P(axis_name, data), P(axis_name, None, data)
    return DevicePipelineState(
        params=stage,
        opt_state=stage,
        past=stage,
        inputs=rings.Ring(rows, stage, stage),
        batches=rings.Ring((rows, stage), stage, stage),
        received=flowing,
        cotangent=flowing,
        losses=stage,
        tick=stage,
    )


def _widened(state: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[None], state)


def _narrowed(state: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], state)


def _bits(key: Any) -> Any:
    return None if key is None else jax.random.key_data(key)


def _check_layers(parts: Parts, params: Any) -> None:
    """Checks that all stages have the same shapes."""
    if not is_stacked(params[parts.names[1]]):
        raise ValueError("`params` must have stacked layers, got a list of trees.")


def _check_whole(params: Any, mesh: Mesh, axis_name: str) -> None:
    """Checks that parameters are sharded over stages alone."""
    kept = axis_name, *(name for name, size in mesh.shape.items() if size == 1)
    for path, leaf in jax.tree.leaves_with_path(params):
        lost = shardings.without(kept, shardings.spec_of(leaf, (), None))
        if lost != P():
            raise ValueError(
                f"`params` must be sharded over {axis_name!r} alone, got {lost} at"
                f" {trees.path_name(path)}: other axes split the batch."
            )


def _check_schedule(schedule: Schedule, devices: int | None, axis_name: str) -> None:
    if schedule.stages != devices:
        raise ValueError(
            f"`mesh` must have {schedule.stages} devices along {axis_name!r}, got"
            f" {devices}."
        )
    runs = pipedream(schedule.stages, stash=schedule.stash, in_flight="full")
    if dataclasses.replace(schedule, name=runs.name) != runs:
        raise ValueError(
            f"`schedule` must be one microbatch a tick, got {schedule.name}: use"
            ' pipedream(stages, in_flight="full") or pipemare(stages, 1).'
        )
