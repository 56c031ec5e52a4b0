"""A pipeline on devices equals its simulation, tick by tick."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from delayjax import pipelines
from tests.pipelines import chain
from tests.pipelines.following import assert_follows
from tests.support.cases import shortened

ADAM = optax.adam(0.01)


def mesh(stages, data=1, kind=AxisType.Auto):
    return jax.make_mesh((stages, data), ("stages", "data"), axis_types=(kind,) * 2)


def schedule(stages=4, **options):
    return pipelines.pipedream(stages, in_flight="full", **options)


@pytest.mark.parametrize(
    ("stages", "data", "stash"),
    shortened(
        [(s, 4 // s, stash) for s in (4, 2, 1) for stash in (True, False)],
        *((4, 1, True), (2, 2, False)),
    ),
)
def test_it_is_the_simulation_of_mixed_versions(stages, data, stash):
    plan = schedule(stages, stash=stash)
    assert_follows(chain.parts(), ADAM, plan, mesh(stages, data), updates=50)


def test_a_stage_that_predicts_knows_its_own_delay():
    def predicting(delay):
        return dj.predict_weights(ADAM, delay)

    assert_follows(
        chain.parts(),
        predicting,
        schedule(),
        mesh(4),
        updates=12,
        forward_point=dj.gradient_params,
    )


def test_rules_are_told_staleness_and_the_point_that_was_read():
    """A law of the staleness, and DC-ASGD, which reads stale parameters."""
    rule = optax.chain(
        dj.compensate_delay(0.5),
        optax.sgd(0.05),
        dj.scale_by_staleness(dj.modulation.inverse),
    )
    assert_follows(chain.parts(), rule, schedule(), mesh(4), updates=12)


def test_a_norm_is_a_norm_of_the_stage_s_own_parameters():
    """Weight decay of the copies of other stages would change the clipped norm."""
    rule = optax.chain(
        optax.add_decayed_weights(1.0), optax.clip_by_global_norm(0.1), optax.sgd(0.5)
    )
    assert_follows(chain.parts(), rule, schedule(), mesh(4), updates=12)


def test_a_stage_is_told_the_loss_of_the_batch_whose_gradient_arrives():
    """The loss of that batch at the head, S - 1 - s ticks ago: a mean over the data."""

    def update(grads, state, params=None, *, value=None, **extra):
        return grads, {"value": value}

    recorder = optax.GradientTransformationExtraArgs(
        lambda params: {"value": jnp.zeros(())}, update
    )
    pipe = pipelines.run(
        chain.parts(), optax.chain(recorder, optax.sgd(0.1)), schedule(2), mesh(2, 2)
    )
    start, batches = chain.single(chain.params(4)), chain.batches(6).astype(np.float32)
    state, step, losses = pipe.init(start, batches[0]), jax.jit(pipe.step), []
    for batch in batches:
        state, loss = step(state, batch)
        losses.append(loss)
    np.testing.assert_allclose(state.opt_state[0]["value"], losses[-2:], rtol=1e-6)


def test_a_rule_that_needs_the_loss_steps_as_in_the_simulation():
    rule = optax.polyak_sgd(0.05)
    assert_follows(chain.parts(), rule, schedule(), mesh(4), updates=8)


@pytest.mark.parametrize("name", shortened(chain.BY_LEAF, "muon"))
def test_a_rule_by_rank_or_norm_steps_as_in_the_simulation(name):
    assert_follows(chain.parts(), chain.BY_LEAF[name], schedule(), mesh(4), updates=6)


@pytest.mark.parametrize("name", shortened(chain.BY_LEAF, "adamw"))
def test_one_stage_is_a_loop_of_the_model_whose_layers_lie_apart(name):
    pipe = pipelines.run(chain.biased(), chain.BY_LEAF[name], schedule(1), mesh(1, 2))
    expected, batches = chain.loop_of_layers(name), chain.single(chain.batches(5))
    state = pipe.init(chain.single(chain.with_biases(8)), batches[0])
    tick = jax.jit(pipe.step)
    for batch, (loss, params) in zip(batches, expected, strict=True):
        state, now = tick(state, batch)
        np.testing.assert_allclose(now, loss, rtol=1e-4)
        chain.assert_close(chain.layers_apart(pipe.params(state)), params, times=20)


def test_layers_have_the_same_keys_as_in_the_simulation():
    def dropped(x, key):
        return x * jax.random.bernoulli(key, 0.8, x.shape)

    parts = pipelines.Parts(
        embed=lambda p, batch, key: dropped(batch @ p, key),
        block=lambda p, x, key: x + dropped(x @ p["w"], key),
        head=chain.parts().head,
    )
    keys = jax.random.split(jax.random.key(1), 20)
    assert_follows(parts, ADAM, schedule(), mesh(4), updates=8, keys=keys)


def test_multi_steps_update_after_each_m_microbatches():
    """It is `mixed` with M microbatches: w changes only each M ticks."""
    many = pipelines.pipedream(2, microbatches=2, in_flight="full")
    pipe = pipelines.mixed(chain.parts(), optax.sgd(0.05), many)
    device = pipelines.run(
        chain.parts(), optax.MultiSteps(optax.sgd(0.05), 2), schedule(2), mesh(2)
    )
    batches = chain.batches(10).astype(np.float32)
    start = chain.single(chain.params(4))
    state, held = pipe.init(start, batches[0]), device.init(start, batches[0][:2])
    step, tick, ends = jax.jit(pipe.step), jax.jit(device.step), []
    for batch in batches:
        state, _ = step(state, batch)
        ends.append(state.params)
    for t, micro in enumerate(batches.reshape(20, 2, 3)):
        held, _ = tick(held, micro)
        for stage in range(2):
            done = (t - 2 + stage + 1) // 2
            if done > 0:
                mine = jax.tree.map(lambda leaf, s=stage: leaf[s], held.params)
                for name, expected in ends[done - 1][stage].items():
                    chain.assert_close(mine[name], expected)


def test_a_run_that_is_stored_goes_on_bit_for_bit(tmp_path):
    pipe = pipelines.run(chain.parts(), ADAM, schedule(), mesh(4))
    batches = chain.batches(16).astype(np.float32)
    state = pipe.init(chain.single(chain.params(4)), batches[0])
    places = jax.tree.map(lambda leaf: leaf.sharding, state)
    tick = jax.jit(pipe.step)
    for t, batch in enumerate(batches):
        if t == 9:
            leaves = map(np.asarray, jax.tree.leaves(state))
            np.savez(tmp_path / "state.npz", *leaves)
        state, _ = tick(state, batch)
    with np.load(tmp_path / "state.npz") as file:
        leaves = [file[name] for name in file.files]
    other = jax.tree.unflatten(jax.tree.structure(state), leaves)
    other = jax.device_put(other, places)
    for batch in batches[9:]:
        other, _ = tick(other, batch)
    jax.tree.map(np.testing.assert_array_equal, state, other)


def test_a_tick_keeps_types_and_places_and_gives_its_buffers_back():
    """Also on a mesh of Explicit axes, with bfloat16 parameters."""
    start = jax.tree.map(lambda x: x.astype(jnp.bfloat16), chain.params(4))
    batch = chain.batches(1)[0].astype(jnp.bfloat16)
    pipe = pipelines.run(
        chain.parts(), ADAM, schedule(2), mesh(2, 2, AxisType.Explicit)
    )
    state = pipe.init(start, batch)
    types = jax.tree.map(lambda leaf: (leaf.aval, leaf.sharding), state)
    tick = jax.jit(pipe.step, donate_argnums=0)
    after, _ = tick(state, batch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert jax.tree.map(lambda leaf: (leaf.aval, leaf.sharding), after) == types
    tick(after, batch)


def test_the_loss_is_of_the_batch_that_has_reached_the_head():
    """Loss t is of batch t - S + 1. There is none before."""
    pipe = pipelines.run(chain.parts(), optax.sgd(0.0), schedule(3), mesh3())
    batches = chain.batches(6).astype(np.float32)
    params = chain.single(chain.params(3))
    state, result = pipe.init(params, batches[0]), []
    tick = jax.jit(pipe.step)
    for batch in batches:
        state, loss = tick(state, batch)
        result.append(float(loss))
    expected = [float(chain.parts().loss(params, batch)) for batch in batches[:4]]
    np.testing.assert_allclose(result, [np.nan, np.nan, *expected], rtol=1e-5)


def test_the_state_holds_no_nan():
    """With `jax_debug_nans` the state can be made, and all ticks with a loss run."""
    pipe = pipelines.run(chain.parts(), ADAM, schedule(3), mesh3())
    batch = chain.batches(1)[0].astype(np.float32)
    tick = jax.jit(pipe.step)
    with jax.debug_nans(True):
        state = pipe.init(chain.single(chain.params(3)), batch)
    for _ in range(2):
        state, _ = tick(state, batch)
    with jax.debug_nans(True):
        for _ in range(2):
            state, loss = tick(state, batch)
    assert loss > 0


def mesh3():
    return jax.make_mesh((3,), ("stages",), devices=jax.devices()[:3])


def test_a_tick_sends_one_activation_forward_and_one_cotangent_back():
    """Between stages nothing else is sent, except the loss, a scalar."""
    stages = jax.make_mesh((4,), ("stages",))
    pipe = pipelines.run(chain.parts(), ADAM, schedule(4), stages)
    batch = chain.batches(1)[0].astype(np.float32)
    state = pipe.init(chain.single(chain.params(4)), batch)
    text = jax.jit(pipe.step, donate_argnums=0).lower(state, batch).compile().as_text()
    sends = r"(\S+) (collective-permute|all-reduce|all-gather|all-to-all)\("
    result = sorted((kind, shape) for shape, kind in re.findall(sends, text))
    activation = "f32[4,3]{1,0}"
    assert result == [
        ("all-reduce", "f32[]"),
        ("collective-permute", activation),
        ("collective-permute", activation),
    ]


def with_scalar():
    """The blocks add an auxiliary loss, which is sent beside x."""
    parts = chain.parts()
    return pipelines.Parts(
        embed=lambda p, batch, key: (parts.embed(p, batch, key), jnp.zeros(())),
        block=lambda p, x, key: (parts.block(p, x[0], key), x[1] + jnp.mean(x[0] ** 2)),
        head=lambda p, x, batch: parts.head(p, x[0], batch) + x[1],
    )


def over_model():
    """The columns of the blocks are split over the axis that splits the batch, too."""
    start = chain.single(chain.params(4))
    start["blocks"]["w"] = np.ones((4, 2, 2), np.float32)
    columns = NamedSharding(mesh(2, 2), P("stages", None, "data"))
    return start | {"blocks": jax.device_put(start["blocks"], columns)}


TIED = jnp.eye(3)
WRONG = {
    "tied": (
        dict(params=chain.params(4) | {"embed": TIED, "head": TIED}),
        r"`params` must not hold an array twice, got one at \['embed'\] and \['head'\]",
    ),
    "a scalar of x": (
        dict(parts=with_scalar()),
        "shard_map applied to the function 'of_stage' was given an",
    ),
    "sharded": (
        dict(params=over_model(), mesh=mesh(2, 2), schedule=schedule(2)),
        r"`params` must be sharded over 'stages' alone, got .*'data'\) at \['blocks'\]",
    ),
    "a tree mask": (
        dict(optimizer=optax.adamw(0.1, mask=dict(embed=True, blocks={"w": True}))),
        "pytree structure error: different numbers of pytree children at",
    ),
    "if delay": (
        dict(optimizer=lambda delay: ADAM if delay == 0 else optax.sgd(0.1)),
        "Attempted boolean conversion of traced array with shape",
    ),
    "int(delay)": (
        dict(optimizer=lambda delay: optax.sgd(0.1 / (1 + int(delay)))),
        "Abstract tracer value encountered where concrete value is",
    ),
    "no such axis": (
        dict(axis_name="layers"),
        r"`mesh` must have 4 devices along 'layers', got None\.",
    ),
    "another number": (
        dict(schedule=schedule(3)),
        r"`mesh` must have 3 devices along 'stages', got 4\.",
    ),
    "throttled": (dict(schedule=pipelines.pipedream(4)), "one microbatch a tick"),
    "flushes": (dict(schedule=pipelines.gpipe(4, 4)), "got GPipe"),
    "uneven": (dict(params=chain.params(6)), "not evenly divisible"),
    "a list": (
        dict(params=chain.params(4) | {"blocks": [np.eye(3)] * 4}),
        r"`params` must have stacked layers, got a list of trees\.",
    ),
    "a part": (
        dict(mesh=mesh(2, 2), schedule=schedule(2)),
        "shard_map applied to the function 'of_stage' was given argument",
    ),
}


def test_a_key_is_given_always_or_never():
    batch, keys = chain.batches(1)[0].astype(np.float32), (None, jax.random.key(0))
    for first, second in (keys, keys[::-1]):
        pipe = pipelines.run(chain.parts(), ADAM, schedule(), mesh(4))
        state = pipe.init(chain.single(chain.params(4)), batch, first)
        with pytest.raises(
            ValueError, match="`tree` must have the structure of the history's items,"
        ):
            jax.eval_shape(pipe.step, state, batch, second)


def test_the_first_state_needs_no_more_than_the_shapes_of_a_batch():
    batch = chain.batches(1)[0].astype(np.float32)
    pipe = pipelines.run(chain.parts(), ADAM, schedule(2), mesh(2, 2))
    given = (
        pipe.init(chain.single(chain.params(4)), shapes)
        for shapes in (batch, jax.ShapeDtypeStruct(batch.shape, batch.dtype))
    )
    jax.tree.map(np.testing.assert_array_equal, *given)


def test_a_prediction_that_no_pass_reads_is_refused():
    pipe = pipelines.run(
        chain.parts(),
        lambda delay: dj.predict_weights(ADAM, delay),
        schedule(),
        mesh(4),
    )
    batch = chain.batches(1)[0].astype(np.float32)
    with pytest.raises(ValueError, match="`forward_point` must be given"):
        pipe.init(chain.single(chain.params(4)), batch)


@pytest.mark.parametrize("change, message", WRONG.values(), ids=WRONG)
def test_what_cannot_run_is_refused_before_training(change, message):
    given = dict(parts=chain.parts(), optimizer=ADAM, schedule=schedule(), mesh=mesh(4))
    given |= dict(params=chain.params(4)) | change
    params = given.pop("params")
    with pytest.raises((ValueError, TypeError), match=message) as refused:
        pipe = pipelines.run(**given)
        pipe.init(jax.tree.map(single, params), chain.single(chain.batches(1, 3)[0]))
    is_ours = str(refused.value).startswith("`")  # errors of JAX have several lines
    assert not is_ours or "\n" not in str(refused.value)


def single(leaf):
    """The tree in float32, on the same devices."""
    return leaf if isinstance(leaf, jax.Array) else leaf.astype(np.float32)


def test_a_rule_that_changes_types_in_shard_map_is_refused():
    """In Optax's rule a `lax.cond` has unequal branch types; `mixed` accepts it."""
    rule = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau())
    pipe, batch = pipelines.run(chain.parts(), rule, schedule(), mesh(4)), batch_of(4)
    state = pipe.init(chain.single(chain.params(4)), batch)
    message = r"cond branches must have equal output types but they differ\."
    with pytest.raises(TypeError, match=message):
        jax.eval_shape(pipe.step, state, batch)
    pipe = pipelines.mixed(chain.parts(), rule, schedule())
    state = pipe.init(chain.single(chain.params(4)), batch)
    jax.eval_shape(pipe.step, state, batch)


def batch_of(examples):
    return chain.batches(1, examples)[0].astype(np.float32)


@pytest.mark.parametrize("examples", [2, 8])
def test_a_batch_of_another_size_than_in_init_is_refused(examples):
    pipe = pipelines.run(chain.parts(), ADAM, schedule(2), mesh(2, 2))
    state = pipe.init(chain.single(chain.params(4)), batch_of(4))
    message = (
        rf"\[0\] is float32\[{examples // 2}, 3\], and its slots hold float32\[2, 3\]"
    )
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(pipe.step, state, batch_of(examples))
