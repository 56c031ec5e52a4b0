"""Simulated pipelines, compared with a loop in NumPy that keeps all versions."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import pipelines
from tests.pipelines import chain
from tests.support.cases import shortened

RATE, BETA, UPDATES, LAYERS = 0.02, 0.6, 100, 5

SCHEDULES = {
    "PipeDream": pipelines.pipedream(3),
    "PipeDream, full": pipelines.pipedream(3, in_flight="full"),
    "PipeDream, of 2 microbatches": pipelines.pipedream(3, microbatches=2),
    "no stash": pipelines.pipedream(3, stash=False),
    "PipeMare": pipelines.pipemare(3, 2),
    "PipeMare, a layer a stage": pipelines.pipemare(5, 1),
    "2BW": pipelines.two_buffered(3, 4),
    "GPipe": pipelines.gpipe(3, 2),
    "1F1B": pipelines.one_f_one_b(2, 4),
    "one stage": pipelines.pipedream(1),
}
KEPT = "PipeDream, full", "PipeDream, of 2 microbatches", "no stash", "2BW"


def trained(make, schedule, layers=LAYERS):
    """[(loss, matrices after the update)] of the pipeline."""
    with jax.enable_x64(True):
        pipe = make(chain.parts(), optax.sgd(RATE, BETA), schedule)
        batches = chain.batches(UPDATES, 4)
        state = pipe.init(chain.params(layers), batches[0])
        step, result = jax.jit(pipe.step, donate_argnums=0), []
        for batch in batches:
            state, loss = step(state, batch)
            result.append((float(loss), chain.seen(pipe, state)))
    return result


def check(result, expected):
    for (loss, now), (own_loss, params) in zip(result, expected, strict=True):
        np.testing.assert_allclose(loss, own_loss, rtol=1e-9)
        for x, y in zip(now, params, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-10)


def loop(schedule, layers, version_of):
    """All versions are kept; forward pass i of stage s reads version_of(i, s)."""
    stage = chain.stages_of(layers, schedule.stages)
    versions = [chain.chained(chain.params(layers))]  # one for each update
    velocity = [np.zeros_like(w) for w in versions[0]]
    count = schedule.microbatches
    for n, batch in enumerate(chain.batches(UPDATES, 4)):
        losses, total = [], [0.0] * len(stage)
        for m, micro in enumerate(np.split(batch, count)):
            i = n * count + m
            forward = [versions[version_of(i, s)][k] for k, s in enumerate(stage)]
            backward = forward if schedule.stash else versions[n]
            loss, grads = chain.gradients(forward, backward, stage, micro)
            losses.append(loss)
            total = [t + g for t, g in zip(total, grads, strict=True)]
        velocity = [BETA * v + g / count for v, g in zip(velocity, total, strict=True)]
        versions.append(
            [w - RATE * v for w, v in zip(versions[n], velocity, strict=True)]
        )
        yield np.mean(losses), versions[-1]


@pytest.mark.parametrize("name", shortened(SCHEDULES, *KEPT))
def test_mixed_versions_are_a_loop_over_all_versions(name):
    schedule = SCHEDULES[name]
    result = trained(pipelines.mixed, schedule)
    check(result, loop(schedule, LAYERS, schedule.forward_version))


STASHED = [name for name, schedule in SCHEDULES.items() if schedule.stash]


@pytest.mark.parametrize("name", shortened(STASHED, "PipeDream"))
def test_under_vertical_sync_all_stages_read_the_version_of_the_first(name):
    schedule = SCHEDULES[name]
    result = trained(pipelines.vertical_sync, schedule)
    check(result, loop(schedule, LAYERS, lambda i, s: schedule.forward_version(i, 0)))


def test_late_gradients_wait_each_for_its_own_stage():
    """g_s(t - tau_s), at the parameters of all stages of update t - tau_s."""
    schedule = pipelines.pipedream(3)
    stage = chain.stages_of(LAYERS, 3)
    now = chain.chained(chain.params(LAYERS))
    velocity, history, expected = [np.zeros_like(w) for w in now], [], []
    for t, batch in enumerate(chain.batches(UPDATES, 4)):
        loss, grads = chain.gradients(now, now, stage, batch)
        history.append(grads)
        used = [history[max(t - (2 - s), 0)][k] for k, s in enumerate(stage)]
        velocity = [BETA * v + g for v, g in zip(velocity, used, strict=True)]
        now = [w - RATE * v for w, v in zip(now, velocity, strict=True)]
        expected.append((loss, now))
    check(trained(pipelines.late, schedule), expected)


def test_where_all_stages_have_one_delay_the_three_meanings_are_one():
    """Except at the start: a FIFO has the first gradient until another one arrives."""
    schedule = pipelines.two_buffered(3, 3)
    with jax.enable_x64(True):
        batches = np.repeat(chain.batches(1, 6), 8, axis=0)  # the same batch each time
        ends = []
        for make in (pipelines.mixed, pipelines.vertical_sync, pipelines.late):
            pipe = make(chain.parts(), optax.sgd(RATE, BETA), schedule)
            state = pipe.init(chain.params(4), batches[0])
            step = jax.jit(pipe.step)
            for batch in batches:
                state, _ = step(state, batch)
            ends.append(chain.seen(pipe, state))
    for other in ends[1:]:
        for x, y in zip(ends[0], other, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12)


def test_late_gradients_are_delayed_by_layers():
    """`late` equals `dj.delayed` of the whole model with `delays.Layers`."""
    delays = {"embed": 2, "blocks": dj.delays.Layers((2, 2, 1, 0)), "head": 0}
    tx = dj.delayed(optax.adam(0.01), delays)
    parts, params = chain.parts(), jax.tree.map(jnp.asarray, chain.params(4))
    pipe = pipelines.late(parts, optax.adam(0.01), pipelines.pipedream(3))
    batches = jnp.asarray(chain.batches(12))
    state, held = pipe.init(params, batches[0]), tx.init(params)

    @jax.jit
    def both(state, held, params, batch):
        grads = jax.grad(parts.loss)(params, batch)
        moves, held = tx.update(grads, held, params)
        return pipe.step(state, batch)[0], held, optax.apply_updates(params, moves)

    for batch in batches:
        state, held, params = both(state, held, params, batch)
    got = pipe.params(state)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), got, params)


def test_a_stage_that_predicts_looks_ahead_by_its_own_delay():
    """The forward pass reads w + tau Delta; the stash holds this point."""
    schedule, layers = pipelines.pipedream(3), 3
    stage = chain.stages_of(layers, 3)
    with jax.enable_x64(True):
        pipe = pipelines.mixed(
            chain.parts(),
            lambda delay: dj.predict_weights(optax.sgd(RATE, BETA), delay),
            schedule,
            forward_point=dj.gradient_params,
        )
        batches = chain.batches(UPDATES, 4)
        state, result = pipe.init(chain.params(layers), batches[0]), []
        step = jax.jit(pipe.step)
        for batch in batches:
            state, loss = step(state, batch)
            result.append((float(loss), chain.seen(pipe, state)))
    now = chain.chained(chain.params(layers))
    last = velocity = [np.zeros_like(w) for w in now]
    points, expected = [], []
    for t, batch in enumerate(batches):
        ahead = [w + (2 - s) * d for w, d, s in zip(now, last, stage, strict=True)]
        points.append(ahead)
        read = [points[max(t - (2 - s), 0)][k] for k, s in enumerate(stage)]
        loss, grads = chain.gradients(read, read, stage, batch)
        velocity = [BETA * v + g for v, g in zip(velocity, grads, strict=True)]
        last = [-RATE * v for v in velocity]
        now = [w + d for w, d in zip(now, last, strict=True)]
        expected.append((loss, now))
    # one share in float32: the reach of `predict_weights`
    check(result, expected)


def test_rules_are_told_each_stages_staleness_and_the_point_that_was_read():
    def recorder(delay):
        def update(updates, state, params=None, *, staleness, stale_params, value, **_):
            return updates, (staleness, stale_params, value)

        def init(params):
            return jnp.int32(0), jax.tree.map(jnp.copy, params), jnp.zeros(())

        del delay
        return optax.chain(
            optax.GradientTransformationExtraArgs(init, update), optax.sgd(RATE)
        )

    pipe = pipelines.mixed(chain.parts(), recorder, pipelines.pipedream(3))
    batches = chain.batches(6).astype(np.float32)
    state, heads = pipe.init(chain.params(3), batches[0]), []
    step = jax.jit(pipe.step)
    for batch in batches:
        heads.append(state.params)
        state, loss = step(state, batch)
    for s in range(3):
        staleness, point, value = state.opt_state[s][0]
        assert int(staleness) == 2 - s
        assert float(value) == float(loss)
        read = heads[5 - (2 - s)][s]
        layers = [{"w": matrix} for matrix in read["blocks"]["w"]]
        read = read | {"blocks": layers}
        jax.tree.map(np.testing.assert_array_equal, point, read)


def test_layers_and_embedding_have_keys_of_their_own_also_in_the_backward_pass():
    """Dropout has the same mask in both passes, with any number of stages."""

    def dropped(x, key):
        return x * jax.random.bernoulli(key, 0.5, x.shape)

    parts = pipelines.Parts(
        embed=lambda p, batch, key: dropped(batch @ p, key),
        block=lambda p, x, key: x + dropped(x @ p["w"], key),
        head=chain.parts().head,
    )
    batch, key = chain.batches(1)[0].astype(np.float32), jax.random.key(3)
    start, ends = chain.params(4), []
    for schedule in (pipelines.gpipe(1, 1), pipelines.pipedream(4, stash=False)):
        pipe = pipelines.mixed(parts, optax.sgd(0.1), schedule)
        step = jax.jit(pipe.step)
        state, loss = step(pipe.init(start, batch, key), batch, key)
        ends.append((float(loss), *chain.seen(pipe, state)))
    for x, y in zip(*ends, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
    other = step(pipe.init(start, batch, key), batch, jax.random.key(4))[1]
    assert float(other) != ends[1][0]


def test_layer_l_receives_fold_in_of_l_and_the_embedding_of_the_number_of_layers():
    """x_{l+1} = 2 x_l + u(key_l), for all layers; also with several in a stage."""
    layers, key, batch = 5, jax.random.key(3), np.zeros((2, 1), np.float32)
    parts = pipelines.Parts(
        embed=lambda p, batch, key: batch + jax.random.uniform(key),
        block=lambda p, x, key: 2 * x + jax.random.uniform(key),
        head=lambda p, x, batch: jnp.mean(x),
    )

    def expected(key):
        drawn = [jax.random.uniform(jax.random.fold_in(key, n)) for n in range(6)]
        powers = [2.0 ** (layers - 1 - n) for n in range(layers)] + [2.0**layers]
        return np.dot(powers, drawn)

    for blocks in (np.ones(layers), [np.ones(()) for _ in range(layers)]):
        params = {"embed": (), "blocks": blocks, "head": ()}
        loss = parts.loss(params, batch, key)
        np.testing.assert_allclose(loss, expected(key), rtol=1e-6)
        pipe = pipelines.mixed(
            parts, optax.sgd(0.1), pipelines.pipedream(3, microbatches=2)
        )
        _, loss = pipe.step(pipe.init(params, batch, key), batch, key)
        each = [expected(jax.random.fold_in(key, i)) for i in range(2)]
        np.testing.assert_allclose(loss, np.mean(each), rtol=1e-6)


@pytest.mark.long
def test_stages_may_have_layers_of_unlike_shapes():
    """A list of layers equals the chain with the same matrices."""
    widths = (3, 5, 2, 3)
    rng = np.random.default_rng(0)
    blocks = [rng.normal(size=pair) for pair in itertools.pairwise(widths)]
    parts = pipelines.Parts(
        embed=chain.parts().embed,
        block=[lambda p, x, key: x @ p] * 3,
        head=chain.parts().head,
    )
    start = chain.params(1) | {"blocks": blocks}
    batches = chain.batches(10)
    with jax.enable_x64(True):
        pipe = pipelines.mixed(parts, optax.sgd(RATE), pipelines.pipedream(3))
        state = pipe.init(start, batches[0])
        for batch in batches:
            state, _ = pipe.step(state, batch)
        end = pipe.params(state)
    versions = [[start["embed"], *blocks, start["head"][:, None]]]
    stage = [0, 0, 1, 2, 2]
    for t, batch in enumerate(batches):
        read = [versions[max(t - (2 - s), 0)][k] for k, s in enumerate(stage)]
        _, grads = chain.gradients(read, read, stage, batch)
        versions.append([w - RATE * g for w, g in zip(versions[t], grads, strict=True)])
    for x, y in zip([end["embed"], *end["blocks"]], versions[-1], strict=False):
        np.testing.assert_allclose(x, y, rtol=1e-10)


def test_gradients_of_microbatches_are_summed_in_float32():
    """Also for bfloat16 parameters, as in MultiSteps: a sum in bfloat16 is inexact."""
    parts = pipelines.Parts(
        embed=lambda p, batch, key: batch,
        block=lambda p, x, key: p[None] * x,
        head=lambda p, x, batch: x.astype(jnp.float32).sum(),
    )
    grads: list[jax.Array] = []
    params = {"embed": (), "blocks": jnp.ones((1, 8), jnp.bfloat16), "head": ()}
    batch = jax.random.uniform(jax.random.key(0), (64, 8)).astype(jnp.bfloat16)
    mean = np.asarray(batch, np.float32).mean(axis=0)  # x is p's gradient

    def seen(updates, state, params=None):
        (layer,) = updates["blocks"]
        grads.append(layer)
        return updates, state

    tx = optax.GradientTransformation(lambda params: (), seen)
    for schedule in (pipelines.gpipe(1, 64), pipelines.pipemare(1, 64)):
        pipe = pipelines.mixed(parts, tx, schedule)
        _, loss = pipe.step(pipe.init(params, batch), batch)
        assert grads[-1].dtype == jnp.bfloat16
        np.testing.assert_array_equal(grads[-1], mean.astype(jnp.bfloat16))
        np.testing.assert_allclose(loss, mean.sum(), rtol=1e-5)


def test_a_stage_keeps_as_many_points_as_its_schedule_says():
    for schedule in SCHEDULES.values():
        pipe = pipelines.mixed(chain.parts(), optax.sgd(0.1), schedule)
        state = pipe.init(chain.params(5), chain.batches(1)[0])
        depths = [
            jax.tree.leaves(ring)[0].shape[0] if ring else 1 for ring in state.past
        ]
        copies = [max(schedule.delays(s)) + 1 for s in range(schedule.stages)]
        assert depths == copies
        if schedule.stash:
            assert copies == [schedule.weight_copies(s) for s in range(schedule.stages)]


def shape_changes(p, x, key):
    return jnp.concatenate([x, x], axis=1)


def with_block(block):
    return pipelines.Parts(chain.parts().embed, block, chain.parts().head)


ADAM, TIED = optax.adam(0.01), jnp.eye(3)
UNEVEN = {"blocks": {"w": np.ones((5, 3, 3)), "b": np.ones((4, 3))}}
WRONG = [
    (dict(schedule=pipelines.pipedream(6)), "`stages` must be at most the 5 layers"),
    (dict(parts=chain.parts(names=("a", "b", "c"))), "must have the parts"),
    (dict(parts=None), r"`parts` must be a Parts, got None\."),
    (dict(schedule=3), r"`schedule` must be a Schedule, got 3\."),
    (
        dict(schedule=pipelines.pipemare(2, 3)),
        r"cannot reshape array of shape \(4, 3\) \(size 12\) into shape \(3,",
    ),
    (
        dict(params=UNEVEN),
        r"`params` must have blocks of leaves \[L, \.\.\.\], got sizes",
    ),
    (
        dict(parts=with_block(shape_changes)),
        "scan body function carry input and carry output must have equal types, but",
    ),
    (dict(parts=with_block([shape_changes])), "list' object is not callable"),
    (
        dict(parts=with_block([shape_changes]), params={"blocks": [{}, {}]}),
        r"`block` must have 2 functions, got 1\.",
    ),
    (
        dict(parts=dataclasses.replace(chain.parts(), head=lambda p, x, batch: x)),
        "Gradient only defined for scalar-output functions",
    ),
    (
        dict(optimizer=optax.adam),
        "`optimizer` must be an optimizer or your function of a delay,",
    ),
    (dict(optimizer=pipelines.nadam), r"the function nadam: write delayjax.nadam\("),
    (
        dict(optimizer=functools.partial(optax.adam, b1=0.5)),
        "the function adam: write optax.adam",
    ),
    (
        dict(params={"blocks": tuple({"w": np.eye(3)} for _ in range(5))}),
        r"`blocks` must be one tree or a list of trees, got a tuple\.",
    ),
    (
        dict(optimizer=dj.predict_weights(optax.sgd(0.1), 1)),
        "`forward_point` must be given, got None: pass forward_point=gradient_params",
    ),
    (
        dict(optimizer=pipelines.discrepancy_correction(optax.sgd(0.1), 1, decay=0.5)),
        "`backward_point` must be given, got None: pass backward_point=backward_params",
    ),
    (
        dict(params={"embed": TIED, "head": TIED}),
        r"`params` must not hold an array twice, got one at \['embed'\] and \['head'\]",
    ),
    (
        dict(params={"blocks": [{"w": TIED}] * 5}),
        r"got one at \['blocks'\]\[0\]\['w'\] and \['blocks'\]\[1\]\['w'\]: copy it",
    ),
    (
        dict(
            optimizer=optax.adamw(0.1, mask=dict(embed=False, blocks=True, head=True))
        ),
        "pytree structure error: different numbers of pytree children at",
    ),
    (
        dict(
            optimizer=optax.partition({"a": ADAM}, dict(embed="a", blocks={"w": "a"}))
        ),
        "pytree structure error: different types at key path",
    ),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[m for _, m in WRONG])
def test_a_wrong_argument_is_refused_before_training(change, message):
    given = dict(parts=chain.parts(), schedule=pipelines.pipedream(2), params={})
    given |= change
    with pytest.raises((ValueError, TypeError), match=message):
        optimizer = given.get("optimizer", optax.sgd(0.1))
        pipe = pipelines.mixed(given["parts"], optimizer, given["schedule"])
        pipe.init(chain.params(5) | given["params"], chain.batches(1)[0])


def test_a_schedule_that_a_meaning_does_not_have_is_refused():
    parts, sgd = chain.parts(), optax.sgd(0.1)
    with pytest.raises(ValueError, match="got PipeMare: use `mixed`"):
        pipelines.vertical_sync(parts, sgd, pipelines.pipemare(2, 1))
    with pytest.raises(
        ValueError, match="`schedule` must stash weights, got PipeDream, no stash: use"
    ):
        pipelines.late(parts, sgd, pipelines.pipedream(2, stash=False))
    with pytest.raises(ValueError, match="`schedule` must have one delay at stage"):
        pipelines.late(parts, sgd, pipelines.pipedream(3, microbatches=2))
    with pytest.raises(ValueError, match="`backward_point` must be left out"):
        pipelines.mixed(
            parts, sgd, pipelines.pipedream(2), backward_point=lambda state, p: p
        )


def test_late_gradients_bring_their_parameters_where_a_rule_reads_them():
    """With the same batch each time and a delay of 1 everywhere, it is `mixed`."""
    rule = optax.chain(dj.compensate_delay(0.5), optax.sgd(0.05))
    schedule, batch = pipelines.two_buffered(2, 2), np.float32(chain.batches(1)[0])
    kept = functools.partial(pipelines.late, keep_params=True)
    ends = []
    for make in (pipelines.mixed, kept):
        pipe = make(chain.parts(), rule, schedule)
        state = pipe.init(chain.single(chain.params(4)), batch)
        for _ in range(6):
            state, _ = jax.jit(pipe.step)(state, batch)
        ends.append(pipe.params(state))
    jax.tree.map(chain.assert_close, *ends)
