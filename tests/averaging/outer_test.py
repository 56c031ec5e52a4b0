"""Outer optimizers, compared with the loops of their papers in numpy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from delayjax import averaging
from tests.averaging.driving import (
    CURVATURE,
    ETA,
    MINIMA,
    NOISE,
    SGD,
    START,
    STEPS,
    assert_follows,
    at_the_model,
    path,
    seen_of,
    step_of,
    train,
)
from tests.exchange.driving import (
    WORKERS,
    as_workers,
    bytes_summed,
    executions,
    lowered,
    mostly_simulated,
    program,
)
from tests.support.cases import shortened
from tests.support.compiled import compile_as_usual

RATE, BETA = 0.7, 0.9
NESTEROV = optax.sgd(RATE, momentum=BETA, nesterov=True)
OF_COORDINATE = np.asarray([0, 1, 0, 2, 1])  # the fragment of each coordinate
MERGES = {  # name: (merge of the library, D.9 in numpy: (x^i, x^i at the start, x))
    "overwriting": (averaging.overwriting, lambda local, begun, x: x),
    "corrected": (averaging.corrected, lambda local, begun, x: x + local - begun),
    "blended": (
        averaging.blended(0.5),
        lambda local, begun, x: 0.5 * x + 0.5 * local,
    ),
}


def nesterov(rate=RATE, beta=BETA):
    """O.1: b <- beta b + dl, x <- x - eta_o (dl + beta b)."""

    def serve(x, b, push):
        b = beta * b + push
        return x - rate * (push + beta * b), b

    return serve


def islands(
    period,
    *,
    serve=None,
    ids=None,
    delay=0,
    merge="overwriting",
    compress=None,
    at_first=0,
):
    """D.15 and O.1: the models, x, and the rest that was not sent; `ids`: fragments.

    If `at_first` is d, exchanges arrive at multiples of H / F, as in torchft.
    `arriving`: {step of arrival: (number of the fragment, the models at its start)}.
    """
    serve = nesterov() if serve is None else serve
    ids = np.zeros(5, int) if ids is None else ids
    count = ids.max() + 1
    x, b, error = START.copy(), np.zeros(5), np.zeros((WORKERS, 5))
    arriving, rounds = {}, 0

    def outer_step(t, models, number, begun):
        nonlocal x, b
        mask = ids == number
        push = x - begun
        if compress is not None:
            whole = push + error
            push = compress(t, whole)
            error[:, mask] = (whole - push)[:, mask]
        stepped, moved = serve(x, b, push.mean(axis=0))
        x, b = np.where(mask, stepped, x), np.where(mask, moved, b)
        return np.where(mask, MERGES[merge][1](models, begun, x), models)

    def mix(t, models, v):
        nonlocal rounds
        models, done = models + v, t + 1
        if delay and done in arriving:
            models = outer_step(t, models, *arriving.pop(done))
        if (done + at_first) % (period // count) == 0:
            arriving[done + delay] = rounds % count, models
            rounds += 1
        if not delay and done in arriving:
            models = outer_step(t, models, *arriving.pop(done))
        return models

    return path(mix, momentum=0.5), x, error


def by_coordinate(path, leaf):
    return OF_COORDINATE


def every_second(tree, step):
    """A compression: sends the coordinates i for which i + step is even."""
    kept = jax.tree.map(lambda leaf: (jnp.arange(leaf.size) + step) % 2 == 0, tree)

    def only_kept(tree):
        return jax.tree.map(lambda leaf, k: jnp.where(k, leaf, 0), tree, kept)

    return only_kept(tree), only_kept


def every_second_in_numpy(t, whole):
    return np.where((np.arange(5) + t) % 2 == 0, whole, 0)


def outer(server=NESTEROV, **arguments):
    return averaging.outer(optax.sgd(ETA, momentum=0.5), server, **arguments)


def begun_at(step, tx):
    """`tx`, but its first state has this number of steps."""
    return optax.GradientTransformation(
        lambda params: tx.init(params)._replace(step=jnp.int32(step)), tx.update
    )


FAMILY = {
    "DiLoCo": (outer(period=10), lambda: islands(10)),
    "every step": (outer(period=1), lambda: islands(1)),
    "late by three steps": (outer(period=10, delay=3), lambda: islands(10, delay=3)),
    "Streaming DiLoCo": (
        outer(
            period=9,
            delay=2,
            merge=averaging.blended(0.5),
            fragments=by_coordinate,
        ),
        lambda: islands(9, delay=2, merge="blended", ids=OF_COORDINATE),
    ),
    "Streaming DiLoCo, with the rounds of torchft": (
        begun_at(
            2,
            outer(
                period=9,
                delay=2,
                merge=averaging.blended(0.5),
                fragments=by_coordinate,
            ),
        ),
        lambda: islands(9, delay=2, merge="blended", ids=OF_COORDINATE, at_first=2),
    ),
    "blended, without a delay": (
        outer(period=10, merge=averaging.blended(0.5)),
        lambda: islands(10, merge="blended"),
    ),
    "fragments at once": (
        outer(period=6, fragments=by_coordinate),
        lambda: islands(6, ids=OF_COORDINATE),
    ),
    "corrected, without momentum": (
        outer(optax.sgd(RATE), period=6, delay=5, merge=averaging.corrected),
        lambda: islands(6, serve=nesterov(beta=0.0), delay=5, merge="corrected"),
    ),
    "compressed": (
        outer(period=5, compress=every_second),
        lambda: islands(5, compress=every_second_in_numpy),
    ),
    "compressed and late": (
        outer(period=5, delay=2, compress=every_second),
        lambda: islands(5, delay=2, compress=every_second_in_numpy),
    ),
}


@executions
def test_models_and_center_follow_the_papers_loops_for_five_rounds_or_more(execution):
    trained = train(execution, {name: tx for name, (tx, _) in FAMILY.items()})
    for name, (_, loop) in FAMILY.items():
        xs, split = trained[name]
        expected, x, error = loop()
        assert_follows(xs, expected, name)
        memory = split.state[1].memory
        if len(memory.fragments) == 1:
            assert_follows(memory.fragments[0].center, x, name)
        for leaf in jax.tree.leaves(memory.error):
            assert_follows(leaf, error, name)


def accumulating_islands(period, count):
    """The models of DiLoCo whose SGD steps with the mean of `count` gradients."""
    x, b, serve, gathered = START.copy(), np.zeros(5), nesterov(), 0

    def mix(t, models, v):
        nonlocal x, b, gathered
        gathered, done = gathered + v / count, t + 1
        if done % count == 0:
            models, gathered = models + gathered, 0
        if done % period == 0:
            x, b = serve(x, b, x - models.mean(axis=0))
            models = np.tile(x, (WORKERS, 1))
        return models

    return path(mix)


@executions
def test_workers_may_accumulate_gradients(execution):
    tx = averaging.outer(optax.MultiSteps(optax.sgd(ETA), 3), NESTEROV, period=6)
    xs, _ = train(execution, {"accumulating": tx})["accumulating"]
    # Optax accumulates in float32
    np.testing.assert_allclose(xs, accumulating_islands(6, 3), rtol=1e-5, atol=1e-5)


CHANGE = 23
CHANGES = {  # (period, delay) before and after step CHANGE; fragments
    "H": ((10, 3), (7, 3), 1),
    "H and d": ((10, 3), (9, 5), 1),
    "no delay": ((10, 3), (8, 0), 1),
    "a delay": ((5, 0), (9, 2), 1),
    "with fragments": ((9, 2), (12, 1), by_coordinate),
}


def changing_islands(before, after, ids):
    """The models; at step CHANGE the count restarts, with new period and delay."""
    x, b, serve, count = START.copy(), np.zeros(5), nesterov(), ids.max() + 1
    arriving = {}

    def mix(t, models, v):
        nonlocal x, b
        models, done = models + v, t + 1
        (period, delay), k = (after, done - CHANGE) if done > CHANGE else (before, done)
        if k % (period // count) == 0:
            arriving[done + delay] = (k * count // period - 1) % count, models
        if done in arriving:
            number, begun = arriving.pop(done)
            stepped, moved = serve(x, b, x - begun.mean(axis=0))
            mask = ids == number
            x, b = np.where(mask, stepped, x), np.where(mask, moved, b)
            models = np.where(mask, x, models)
        return models

    return path(mix, momentum=0.5)


def carried_over(held, fresh):
    """The state `fresh` with the models, x and optimizer states of `held`."""
    (models, old), (_, new) = held.state, fresh.state
    memory = new.memory._replace(fragments=old.memory.fragments)
    new = new._replace(memory=memory, inner_state=old.inner_state)
    return dataclasses.replace(fresh, state=(models, new))


@pytest.mark.parametrize(
    ("change", "execution"),
    shortened(
        [(change, e) for change in CHANGES for e in ("simulate", "run")],
        *((c, "simulate") for c in ("H and d", "a delay", "with fragments")),
    ),
)
def test_another_period_and_delay_hold_from_the_change_on(execution, change):
    """The state is carried over as docs/islands.md describes."""
    before, after, fragments = CHANGES[change]
    ids = np.zeros(5, int) if fragments == 1 else OF_COORDINATE
    expected = changing_islands(before, after, ids)
    with jax.enable_x64(True):
        start, held, seen = jnp.asarray(START), None, []
        batches = jnp.asarray(np.tile(MINIMA, (STEPS, 1, 1))), jnp.asarray(NOISE)
        parts = slice(CHANGE), slice(CHANGE, None)
        for (period, delay), part in zip((before, after), parts, strict=True):
            tx = outer(period=period, delay=delay, fragments=fragments)
            workers = as_workers(execution, step_of(tx, at_the_model))
            given = jax.tree.map(lambda leaf, part=part: leaf[part], batches)
            first = jax.tree.map(lambda leaf: leaf[0], given)
            fresh = workers.init((start, tx.init(start)), first, shared=False)
            held = fresh if held is None else carried_over(held, fresh)
            held, xs = jax.jit(lambda s, b, w=workers: jax.lax.scan(w.step, s, b))(
                held, given
            )
            seen.append(np.asarray(xs))
    assert_follows(np.concatenate(seen), expected, change)


def in_copies(tx, count=8 * 128):
    """`tx` on a model that has each coordinate `count` times; a slice has 8 * 128."""

    def copied(x):
        return jnp.tile(x[:, None], count)

    def update(updates, state, params):
        updates, state = tx.update(copied(updates), state, copied(params))
        return updates.mean(axis=1), state

    return optax.GradientTransformation(lambda x: tx.init(copied(x)), update)


def every_second_row(tree, step):
    """`every_second` for a model whose coordinates have copies."""
    rows = jax.tree.map(lambda x: (jnp.arange(len(x)) + step) % 2 == 0, tree)

    def only_kept(tree):
        return jax.tree.map(lambda x, k: jnp.where(k[:, None], x, 0), tree, rows)

    return only_kept(tree), only_kept


IN_SLICES = {  # slices of one coordinate, of up to two, or of up to three
    "five": (dict(period=10, delay=5), {}),
    "three": (
        dict(period=10, delay=3, merge=averaging.corrected),
        dict(merge="corrected"),
    ),
    "two": (dict(period=12, delay=2, fragments=by_coordinate), dict(ids=OF_COORDINATE)),
    "compressed": (
        dict(period=10, delay=3, compress=every_second_row),
        dict(compress=every_second_in_numpy),
    ),
}


@mostly_simulated
def test_what_is_sent_in_several_slices_arrives_at_its_place(execution):
    txs = {
        name: in_copies(outer(**arguments))
        for name, (arguments, _) in IN_SLICES.items()
    }
    trained = train(execution, txs)
    for name, (arguments, others) in IN_SLICES.items():
        delay = arguments["delay"]
        expected, *_ = islands(arguments["period"], delay=delay, **others)
        assert_follows(trained[name][0], expected, name)


@mostly_simulated
def test_a_step_of_one_outside_is_local_sgd(execution):
    txs = {
        "outer": outer(optax.sgd(1.0), period=4),
        "local": averaging.local_sgd(optax.sgd(ETA, momentum=0.5), period=4),
    }
    trained = train(execution, txs)
    assert_follows(trained["outer"][0], trained["local"][0])


def test_downpour_with_the_mean_of_its_pushes_is_an_outer_optimizer():
    """The pushed sum of updates is -P times the mean pseudo-gradient."""
    inner = optax.sgd(ETA, momentum=0.5)
    server = optax.chain(optax.scale(-1 / WORKERS), NESTEROV)
    txs = {
        "outer": outer(period=5),
        "downpour": averaging.downpour(inner, period=5, server=server),
    }
    trained = train("simulate", txs)
    assert_follows(trained["outer"][0], trained["downpour"][0])


def test_at_each_step_it_is_the_mean_of_the_gradients():
    """H = 1, inner SGD and outer step size 1: all models equal the models of SGD."""
    txs = {
        "outer": averaging.outer(SGD, optax.sgd(1.0), period=1),
        "mean": dj.exchange.mean(SGD),
    }
    trained = train("simulate", {"outer": txs["outer"]})["outer"][0]
    x, expected = START, []
    for t in range(STEPS):
        x = x - ETA * (CURVATURE * (x - MINIMA) + NOISE[t]).mean(axis=0)
        expected.append(np.tile(x, (WORKERS, 1)))
    assert_follows(trained, np.stack(expected))
    seen = seen_of(txs, np.tile(START, (WORKERS, 1)), NOISE, curvature=CURVATURE)
    assert_follows(seen["outer"], seen["mean"])


def alone(tx, steps=25):
    """x [T, n] of one worker without an axis, in float32."""

    def step(carry, noise):
        x, state = carry
        grads = jnp.asarray(CURVATURE, jnp.float32) * x + noise
        updates, state = tx.update(grads, state, x)
        x = optax.apply_updates(x, updates)
        return (x, state), x

    start = jnp.asarray(START, jnp.float32)
    noise = jnp.asarray(NOISE[:steps, 0], jnp.float32)
    return np.asarray(
        jax.jit(lambda s: jax.lax.scan(step, s, noise))((start, tx.init(start)))[1]
    )


def test_one_worker_and_a_step_of_one_outside_is_the_inner_optimizer():
    """Up to two units in the last place of x: x - (x - x') has two roundings."""
    inner = optax.adam(0.01)
    tx = averaging.outer(inner, optax.sgd(1.0), period=25, axis_name=None)
    got, plain = alone(tx), alone(inner)
    np.testing.assert_array_equal(got[:-1], plain[:-1])
    largest = np.maximum(np.abs(START), np.abs(plain[-1])).astype(np.float32)
    assert (np.abs(got[-1] - plain[-1]) <= 2 * np.spacing(largest)).all()


def test_snoo_is_nesterov_around_the_steps_of_one_worker():
    """O.2: s = w - (K steps from w), b <- mu b + s, w <- w - eta_o (mu b + s)."""
    period, rounds = 5, 5
    tx = averaging.outer(SGD, NESTEROV, period=period, axis_name=None)
    w, b = START.copy(), np.zeros(5)
    for r in range(rounds):
        fast = w.copy()
        for t in range(r * period, (r + 1) * period):
            fast = fast - ETA * (CURVATURE * fast + NOISE[t, 0])
        b = BETA * b + (w - fast)
        w = w - RATE * (BETA * b + (w - fast))
    got = alone(tx)[-1]
    np.testing.assert_allclose(got, w, rtol=2e-5, atol=2e-5)


def eager_islands(period, count):
    """D.15: Delta = (1/P)(dl_i^(r) - dl_i^(r-1)) + mean dl^(r-1), on x^i and b^i."""
    x, b, last = np.tile(START, (count, 1)), np.zeros((count, 5)), np.zeros((count, 5))

    def mix(t, models, v):
        nonlocal x, b, last
        models = models + v
        if (t + 1) % period == 0:
            fresh = x - models
            push = (fresh - last) / count + last.mean(axis=0)
            b = BETA * b + push
            x, last = x - RATE * (push + BETA * b), fresh
            models = x
        return models

    return path(mix, momentum=0.5)


@executions
def test_eager_steps_are_the_papers_loop(execution):
    periods = 1, 4, 7
    inner = optax.sgd(ETA, momentum=0.5)
    txs = {str(h): averaging.eager_outer(inner, NESTEROV, period=h) for h in periods}
    txs["4 in slices"] = in_copies(txs["4"])
    trained = train(execution, txs)
    for name, (xs, _) in trained.items():
        assert_follows(xs, eager_islands(int(name[0]), WORKERS), name)


def test_an_eager_step_of_one_worker_is_an_outer_step():
    """(dl - dl') / 1 + dl' is dl, up to the rounding of float64."""
    inner, start = optax.sgd(ETA, momentum=0.5), START[None]
    txs = {
        "eager": averaging.eager_outer(inner, NESTEROV, period=5),
        "outer": averaging.outer(inner, NESTEROV, period=5),
    }
    seen = seen_of(txs, start, NOISE[:, :1], curvature=CURVATURE)
    assert_follows(seen["eager"], seen["outer"])


def test_a_step_on_devices_sends_a_slice_of_an_eager_change_in_no_branch():
    """Each step sends a quarter of 32 x 128 numbers."""
    params = {"w": jnp.zeros((32, 128))}
    compiled = program(
        averaging.eager_outer(SGD, NESTEROV, period=4), params, shared=False
    )
    text = compiled.as_text()
    assert text.count(" all-reduce(") == 1
    assert " all-reduce(" in text[text.index("ENTRY") :]
    assert bytes_summed(compiled) == 4 * 8 * 128


def test_one_round_on_a_quadratic_lowers_the_loss():
    """The pseudo-gradient is the old model minus the new one, and SGD subtracts it."""
    for server in (optax.sgd(0.7), NESTEROV, optax.adam(0.1)):
        tx = averaging.outer(SGD, server, period=5)
        noise = np.zeros((5, WORKERS, 5))
        start = np.tile(START, (WORKERS, 1))
        x = seen_of({"": tx}, start, noise, curvature=CURVATURE)[""][-1]
        before, after = ((CURVATURE * z**2).sum(axis=-1) for z in (start, x))
        assert (after < 0.9 * before).all()


def test_at_delay_zero_correcting_is_overwriting():
    """x + (x^i - x^i_(k)) is x where x^i_(k) is x^i, bit for bit."""
    merges = "corrected", "overwriting"
    txs = {name: outer(period=5, merge=MERGES[name][0]) for name in merges}
    trained = train("simulate", txs)
    np.testing.assert_array_equal(*(trained[name][0] for name in merges))


def test_a_step_on_devices_sums_a_fragment_in_a_branch():
    """Two fragments, of 32 and 3 numbers: an all-reduce of each, and no other."""
    params = {"w": jnp.zeros((8, 4)), "b": jnp.zeros(3)}
    tx = averaging.outer(SGD, NESTEROV, period=4, fragments={"w": 0, "b": 1})
    text = program(tx, params, shared=False).as_text()
    assert " all-reduce(" not in text[text.index("ENTRY") :]
    assert text.count(" all-reduce(") == 2


def test_a_late_fragment_is_sent_in_slices_and_in_no_branch():
    """The larger of two fragments, 32 x 128, makes three slices of 16 x 128."""
    params = {"w": jnp.zeros((32, 128)), "b": jnp.zeros(3)}
    tx = averaging.outer(SGD, NESTEROV, period=8, delay=3, fragments={"w": 0, "b": 1})
    compiled = program(tx, params, shared=False)
    text = compiled.as_text()
    assert text.count(" all-reduce(") == 1
    assert " all-reduce(" in text[text.index("ENTRY") :]
    assert bytes_summed(compiled) == 4 * 16 * 128


@pytest.mark.parametrize(
    ("fragments", "delay"),
    shortened([(f, d) for f in (1, 4) for d in (3, 7)], (1, 3), (4, 7)),
)
def test_a_late_outer_step_has_no_temporary_above_one_fragment(delay, fragments):
    """More than local steps need: a slice to send and one to receive, or a fragment.

    Donated: a worker's model, x, the momentum, the model at the start, the mean.
    """
    params = {f"w{i}": jnp.zeros((256, 1024)) for i in range(4)}
    model = 4 * optax.tree.size(params)
    tx = averaging.outer(
        SGD, NESTEROV, period=8 * fragments, delay=delay, fragments=fragments
    )
    local = dj.extend.averaged(SGD, lambda step, memory, before, model: (model, ()))
    late, alone = (
        compile_as_usual(lowered(each, params, shared=False)).memory_analysis()
        for each in (tx, local)
    )
    assert late.alias_size_in_bytes >= (3 + 2 / fragments) * model
    surplus = late.temp_size_in_bytes - alone.temp_size_in_bytes
    assert surplus <= 1.01 * model / fragments


def test_between_exchanges_the_inbox_stays_as_it_came():
    """Float16, x = 30,000: a second x - 2 x, which nobody reads, would be inf."""
    tx = averaging.outer(SGD, SGD, period=6, delay=2, axis_name=None)
    x = jnp.full(3, 3e4, jnp.float16)
    state, inboxes = tx.init(x), []
    for _ in range(24):
        _, state = jax.jit(tx.update)(0 * x, state, x)
        (inbox,) = state.memory.flight.inbox.values()
        inboxes.append(np.asarray(inbox))
    assert np.isfinite(inboxes).all()
    arrived, starts = 6 + 2, 6 + 6
    for done in range(arrived, starts):
        np.testing.assert_array_equal(inboxes[done - 1], inboxes[arrived - 1])


def test_a_state_of_another_delay_is_refused():
    """Also where both states have the same shapes."""
    params = jnp.zeros((64, 128))
    two, four = (
        averaging.outer(SGD, NESTEROV, period=6, delay=d, axis_name=None)
        for d in (2, 4)
    )
    state = four.init(params)
    shapes = [x.shape for x in jax.tree.leaves(two.init(params))]
    assert shapes == [x.shape for x in jax.tree.leaves(state)]
    with pytest.raises(ValueError, match="`delay` is 2, but the state has 4: make"):
        two.update(params, state, params)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_the_devices_of_one_worker_hold_and_send_parts_of_a_slice(kind):
    """Two workers of two devices: a matrix that is sharded over the two, and a vector.
    Two workers of two devices: a matrix that is sharded over these, and a vector.
        A slice is eight rows of 256 numbers, of which a device has half of the columns.
    """
    mesh = jax.make_mesh((2, 2), ("workers", "model"), axis_types=(kind,) * 2)
    numbers = jax.random.normal(jax.random.key(0), (16, 100)), jnp.ones(5)
    places = NamedSharding(mesh, P("model")), NamedSharding(mesh, P())
    noise = jnp.asarray(NOISE[:, :2, 0], jnp.float32)
    tx = averaging.outer(SGD, NESTEROV, period=6, delay=3)

    def step(state, noise):
        params, opt_state = state
        grads = jax.tree.map(lambda x: x * x - noise, dj.workers.vary(params))
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    def trained(workers, params):
        held = workers.init((params, tx.init(params)), noise[0], shared=False)
        program = jax.jit(workers.step).lower(held, noise[0]).compile()
        for batch in noise[:20]:
            held, _ = program(held, batch)
        return held.state, program

    simulated, _ = trained(dj.workers.simulate(step, 2), numbers)
    ran, program = trained(dj.workers.run(step, mesh), jax.device_put(numbers, places))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), ran[0], simulated[0]
    )
    inbox = ran[1].memory.flight.inbox["3 x float32"]
    assert inbox.shape == (3 * 8, 256)
    assert inbox.sharding.shard_shape(inbox.shape) == (3 * 8, 128)
    assert "f32[8,128]{1,0} all-reduce(" in program.as_text()


@executions
def test_center_and_server_may_lie_on_the_host(execution):
    """Two fragments, one of full tiles, one of three numbers; one step late."""
    params, models = {"w": jnp.ones((8, 128)), "b": jnp.ones(3)}, []
    for history, kinds in ((None, set()), (dj.ring.on_host(), {"pinned_host"})):
        tx = averaging.outer(
            SGD,
            NESTEROV,
            period=4,
            delay=1,
            fragments={"w": 0, "b": 1},
            history=history,
        )

        def step(state, noise, tx=tx):
            x, opt_state = state
            varied = dj.workers.vary(x)
            grads = jax.tree.map(jnp.add, varied, {"w": noise, "b": noise})
            updates, opt_state = tx.update(grads, opt_state, x)
            return (optax.apply_updates(x, updates), opt_state), {}

        workers, noise = as_workers(execution, step), jnp.arange(4.0)
        held = workers.init((params, tx.init(params)), noise, shared=False)
        program = jax.jit(workers.step)
        for _ in range(9):
            held, _ = program(held, noise)
        x, opt_state = held.state
        slots = [getattr(part, "slots", ()) for part in opt_state.memory.fragments]
        assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(slots)} == kinds
        models.append(x)
    jax.tree.map(np.testing.assert_array_equal, *models)


@executions
@pytest.mark.parametrize("delay", [0, 3])
def test_islands_of_devices_share_one_inner_mean_and_one_outer_step(execution, delay):
    """Two islands of two members: DiLoCo of two workers with mean gradients."""
    inner = dj.exchange.mean(optax.sgd(ETA, momentum=0.5), axis_name="members")
    tx = averaging.outer(inner, NESTEROV, period=5, delay=delay, axis_name="groups")

    def step(state, batch):
        x, opt_state = state
        minimum, noise = batch
        varied = dj.workers.vary(x, axis_name=("groups", "members"))
        grads = jnp.asarray(CURVATURE) * (varied - minimum) + noise
        updates, opt_state = tx.update(grads, opt_state, x)
        return (optax.apply_updates(x, updates), opt_state), {}

    with jax.enable_x64(True):
        start = jnp.asarray(START)
        if execution == "simulate":
            held = dj.workers.simulate(step, (2, 2), axis_name=("groups", "members"))
        else:
            mesh = jax.make_mesh((2, 2), ("groups", "members"))
            held = dj.workers.run(step, mesh, axis_name=("groups", "members"))
        batches = np.tile(MINIMA, (STEPS, 1, 1)), NOISE
        batches = jax.tree.map(lambda x: jnp.asarray(x.reshape(-1, 2, 2, 5)), batches)
        first = jax.tree.map(lambda leaf: leaf[0], batches)
        split = held.init((start, tx.init(start)), first, shared=False)
        run = jax.jit(lambda s, b: jax.lax.scan(held.step, s, b)[0])
        got = np.asarray(run(split, batches).state[0])
    x, b = START.copy(), np.zeros(5)
    models, v = np.tile(START, (2, 1)), np.zeros((2, 5))
    minima, noise = MINIMA.reshape(2, 2, 5), NOISE.reshape(-1, 2, 2, 5)
    serve = nesterov()
    for t in range(STEPS):
        grads = (CURVATURE * (models[:, None] - minima) + noise[t]).mean(axis=1)
        v = 0.5 * v - ETA * grads
        models = models + v
        if (t + 1) % 5 == 0:
            begun = models
        if t + 1 > delay and (t + 1 - delay) % 5 == 0:
            x, b = serve(x, b, x - begun.mean(axis=0))
            models = np.tile(x, (2, 1))
    assert got.shape == (2, 5)  # all members of an island have one model
    assert_follows(got, models)


@pytest.mark.parametrize(
    ("period", "options", "is_sound"),
    [
        (4, dict(delay=3), True),
        (3, dict(delay=3), False),
        (0, {}, False),
        (4, dict(fragments={"w": 0, "b": 1}), True),
        (3, dict(fragments={"w": 0, "b": 1}), False),
    ],
)
def test_a_traced_period_that_breaks_the_rule_of_exchanges_makes_all_nan(
    period, options, is_sound
):
    params = {"w": jnp.ones(3), "b": jnp.ones(())}

    @jax.jit
    def moves(period):
        tx = averaging.outer(SGD, SGD, period=period, axis_name=None, **options)
        return tx.update(params, tx.init(params), params)[0]

    for leaf in jax.tree.leaves(moves(period)):
        assert np.isfinite(leaf).all() if is_sound else np.isnan(leaf).all()


def test_a_leaf_without_numbers_is_sent_in_slices_as_others_are():
    params = {"none": jnp.ones((0, 3)), "b": jnp.ones(3)}
    tx = averaging.outer(SGD, SGD, period=4, delay=2, axis_name=None)
    moves, _ = jax.jit(lambda p: tx.update(p, tx.init(p), p))(params)
    assert moves["none"].shape == (0, 3) and np.isfinite(moves["b"]).all()
