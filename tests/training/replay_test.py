"""`replay` against a server that keeps every version and takes gradients one by one."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.support.cases import shortened
from tests.support.compiled import compile_as_usual


def fresh_key():
    return jax.random.key(7)


KEY = fresh_key()
PARAMS = {
    "layer": {
        "b": jnp.array([0.5, -2.0], jnp.bfloat16),
        "w": jnp.arange(6, dtype=jnp.float32).reshape(3, 2) / 8,
    },
    "scale": jnp.array(1.0, jnp.float32),
    "nothing": {},
}


def loss(params, batch, key):
    """Of a small net with noisy targets; its bfloat16 leaf touches no other leaf."""
    w, b = params["layer"]["w"], params["layer"]["b"]
    # the key's own bits: cheaper to compile than a draw
    noise = (jax.random.key_data(key) % 1024).astype(jnp.float32) / 2048
    target = batch["target"] + noise
    output = params["scale"] * jnp.tanh(batch["features"] @ w)
    fit = jnp.sum((output - target) ** 2) / 4
    apart = jnp.sum((b - target.astype(b.dtype)) ** 2)
    return fit + apart.astype(jnp.float32), {"fit": fit}


def grad_fn(params, batch, key):
    """The metrics alone: of the loss its bfloat16 part would be known to 8 bits."""
    (_, metrics), gradients = jax.value_and_grad(loss, has_aux=True)(params, batch, key)
    return metrics, gradients


def batches_of(trace, seed=0):
    """Leaves [updates, K, ...], float32."""
    rng = np.random.default_rng(seed)
    shape = trace.staleness.shape
    return {
        "features": rng.normal(size=(*shape, 3)).astype(np.float32),
        "target": rng.normal(size=(*shape, 2)).astype(np.float32),
    }


def trace_of(rows, divisor=None):
    """A trace by hand: for each update the (worker, version read) of its gradients."""
    flat = [(t, *gradient) for t, row in enumerate(rows) for gradient in row]
    update, worker, read_version = np.array(flat, np.int32).reshape(-1, 3).T
    num_workers = int(worker.max()) + 1
    if divisor is None:
        divisor = [len(row) for row in rows]
    return dj.cluster.Trace(
        num_workers=num_workers,
        seconds=np.arange(1.0, len(rows) + 1),
        update=update,
        worker=worker,
        read_version=read_version,
        begun=read_version.astype(np.float64),
        arrived=update + 1.0,
        divisor=np.asarray(divisor, np.float64),
        busy_seconds=np.full(num_workers, len(rows), np.float64),
    )


def rows_of(trace):
    """The inverse of `trace_of`."""
    rows = [[] for _ in range(trace.num_updates)]
    gradients = trace.update, trace.worker, trace.read_version
    for t, worker, version in zip(*(x.tolist() for x in gradients), strict=True):
        rows[t].append((worker, version))
    return rows


def draw(seed, sizes, deepest):
    """Rows of the given sizes, each gradient of any staleness up to `deepest`."""
    rng = np.random.default_rng(seed)
    return [
        [
            (int(rng.integers(9)), t - int(rng.integers(min(t, deepest) + 1)))
            for _ in range(size)
        ]
        for t, size in enumerate(sizes)
    ]


ONE = {
    "serial": trace_of([[(0, t)] for t in range(14)]),
    "one by one": trace_of(draw(1, [1] * 14, 5)),
    "deep": trace_of([[(t % 3, max(0, t - 12))] for t in range(14)]),
}
FOUR = {
    "four": trace_of(draw(2, [4] * 10, 6)),
    "four that agree": trace_of([[(w, t) for w in range(4)] for t in range(10)]),
    "four equally late": trace_of(
        [[(w, max(0, t - 2)) for w in range(4)] for t in range(10)]
    ),
    "ragged": trace_of(draw(3, [1, 4, 2, 3, 1, 1, 4, 4, 2, 3], 4)),
    "with empty updates": trace_of(
        draw(4, [3, 0, 1, 4, 0, 2, 3, 0, 4, 1], 3),
        divisor=[2.5, 2.5, 1, 3.5, 2.5, 2, 2, 4, 6, 1],
    ),
    "some equally late": trace_of(
        [
            [(w, max(0, t - 3)) for w in range(size)]
            for t, size in enumerate([2, 4, 0, 1, 3, 4, 0, 2, 4, 1])
        ],
        divisor=np.arange(1.0, 11.0),
    ),
}
FIFTEEN = {"fifteen": trace_of(draw(5, [15] * 6, 4))}
TRACES = {**ONE, **FOUR, **FIFTEEN}

# name: (a trace, all that its program is made for, gradients taken at once); a trace
# alone may show the program what is the same in all of its updates
RUNS = {
    **{name: (name, tuple(ONE), None) for name in ONE},
    **{name: (name, tuple(FOUR), 3) for name in FOUR},
    "four, at once": ("four", tuple(FOUR), 40),
    "ragged, at once": ("ragged", tuple(FOUR), 40),
    "fifteen": ("fifteen", ("fifteen",), 4),
    "serial, alone": ("serial", ("serial",), None),
    "four, alone": ("four", ("four",), 3),
    "four that agree, alone": ("four that agree", ("four that agree",), 3),
    "four equally late, alone": ("four equally late", ("four equally late",), None),
    "some equally late, alone": ("some equally late", ("some equally late",), 3),
}
runs = pytest.mark.parametrize("run", RUNS)


class Server:
    """A parameter server from its definition: all versions kept, nothing in parallel.

    `each` (its state passed from gradient to gradient) transforms a gradient, `tx` the
    mean. Versions count the updates applied: one whose gradients are all refused makes
    none.
    """

    def __init__(self, tx, *, each=None, accept=None):
        tx = optax.with_extra_args_support(tx)
        each = optax.with_extra_args_support(each or optax.identity())
        self.init_tx, self.update_tx = tx.init, jax.jit(tx.update)
        self.init_each, self.update_each = each.init, jax.jit(each.update)
        self.accept = accept

    def train(self, trace, batches, key=KEY, params=PARAMS, *, agree=False):
        """The parameters after each update, what was reported, the last states.

        `agree` says that the gradients of each update were taken at one version.
        """
        rows, divisor = rows_of(trace), trace.divisor.tolist()
        versions, applied = [params], [0]
        opt_state, each_state = self.init_tx(params), self.init_each(params)
        reports = []
        for t, row in enumerate(rows):
            params = versions[t]
            accepted, ages, metrics = [], [], []
            for k, (worker, version) in enumerate(row):
                stale_params = versions[version]
                batch = jax.tree.map(lambda x, t=t, k=k: x[t, k], batches)
                own_key = jax.random.fold_in(jax.random.fold_in(key, t), k)
                metric, grads = one_gradient(stale_params, batch, own_key)
                metrics.append(metric["fit"])
                tau = applied[t] - applied[version]
                if self.accept is not None and not self.accept(grads, tau):
                    continue
                told = {
                    "staleness": jnp.int32(tau),
                    "stale_params": stale_params,
                    "worker": jnp.int32(worker),
                }
                grads, each_state = self.update_each(grads, each_state, params, **told)
                accepted.append(grads)
                ages.append(tau)
            reports.append((ages, metrics))
            if row and not accepted:
                versions.append(params)
                applied.append(applied[t])
                continue
            size = divisor[t] * len(accepted) / len(row) if row else divisor[t]
            mean = mean_of(accepted, size, params)
            told = {"staleness": jnp.float32(mean_age(ages))}
            if agree:
                version = row[0][1] if row else t
                told = {
                    "staleness": jnp.int32(mean_age(ages)),
                    "stale_params": versions[version],
                }
            updates, opt_state = self.update_tx(mean, opt_state, params, **told)
            versions.append(optax.apply_updates(params, updates))
            applied.append(applied[t] + 1)
        return stack(versions[1:]), reports, (opt_state, each_state)


one_gradient = jax.jit(grad_fn)


def mean_of(trees, divisor, like):
    """Their sum, in order and in double precision, over the divisor."""

    def mean(leaf, *leaves):
        total = sum((np.asarray(x, np.float64) for x in leaves), np.zeros(leaf.shape))
        return jnp.asarray(total / divisor, leaf.dtype)

    return jax.tree.map(mean, like, *trees)


def mean_age(ages):
    return sum(ages) / max(1, len(ages))


def versions_agree(trace):
    return all(len({version for _, version in row}) <= 1 for row in rows_of(trace))


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def pick(tree, i):
    return jax.tree.map(lambda x: x[i], tree)


def types(tree):
    return jax.tree.map(jax.typeof, tree)


def is_key(x):
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def host(tree):
    """As a checkpoint holds it: NumPy arrays alone, keys as their numbers."""
    return jax.tree.map(
        lambda x: np.array(jax.random.key_data(x) if is_key(x) else x), tree
    )


def restored(saved, like):
    def to_jax(x, leaf):
        return jax.random.wrap_key_data(x) if is_key(leaf) else jnp.asarray(x)

    return jax.tree.map(to_jax, saved, like)


def assert_same(ours, theirs):
    """Bit for bit."""
    jax.tree.map(np.testing.assert_array_equal, host(ours), host(theirs))


def assert_close(ours, theirs):
    """But for the order of sums and XLA's fusions, which round once less or more.

    In the leaf `b` of 8 bits, bfloat16, that is a few units in the last place.
    """

    def close(path, a, b):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if is_key(a):
            return assert_same(a, b)
        allowed = 2.0**-6 if jax.tree_util.DictKey("b") in path else 1e-6
        a, b = (np.asarray(x, np.float64) for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=allowed, atol=allowed)

    jax.tree.map_with_path(close, ours, theirs)


def follower(replay):
    """A compiled scan: parameters after each update, the reports, the last state."""

    def body(state, inputs):
        state, report = replay.step(state, inputs)
        return state, (state.params, report)

    scan = jax.jit(lambda state, inputs: jax.lax.scan(body, state, inputs))

    def follow(trace, batches, key=KEY, params=PARAMS):
        inputs = trace.arrivals(0, trace.num_updates), batches
        state, (path, reports) = scan(replay.init(params, key), inputs)
        return path, reports, state

    return follow


SGD = optax.sgd(0.1)
MOMENTUM = optax.sgd(0.1, momentum=0.5)
ADAM = optax.adam(0.05)
LATE = dj.scale_by_staleness(dj.modulation.inverse)
# a law that tells 0 from 1
KARDAM = dj.scale_by_staleness(dj.modulation.polynomial(1.0))
CONSTANT = dj.compensate_delay(0.5)
ADAPTIVE = dj.compensate_delay(0.5, adaptive=True, decay=0.75)
BOTH = optax.chain(ADAPTIVE, LATE)


def large(grads, staleness):
    """Event-triggered upload: the gradient's norm reaches a threshold."""
    del staleness
    return optax.tree.norm(grads) >= 2.5


def young(grads, staleness):
    del grads
    return staleness <= 1


def only(accept, each=None):
    """`each` for the gradients that accept(gradients, staleness) uses."""

    def rule(grads, memory, params, *, staleness, **extra_args):
        return accept(grads, staleness), grads, memory

    return dj.refusing(each or optax.identity(), rule)


# name: options of `replay`
OPTIONS = {
    "momentum": dict(tx=MOMENTUM),
    "rate over staleness": dict(tx=SGD, each=LATE),
    "DC-ASGD-c": dict(tx=SGD, each=CONSTANT),
    "both": dict(tx=ADAM, each=BOTH),
    "one chain": dict(tx=optax.chain(ADAPTIVE, ADAM, KARDAM)),
    "mean staleness": dict(tx=optax.chain(SGD, KARDAM)),
    "large ones": dict(tx=optax.chain(MOMENTUM, KARDAM), each=ADAPTIVE),
    "young ones": dict(tx=MOMENTUM, each=KARDAM),
}
ACCEPTS = {"large ones": large, "young ones": young}


@functools.cache
def library(company, options, chunk=None):
    traces = [TRACES[name] for name in company]
    own = dict(OPTIONS[options])
    if options in ACCEPTS:
        own["each"] = only(ACCEPTS[options], own["each"])
    return follower(dj.replay(traces, grad_fn, chunk=chunk, **own))


@functools.cache
def oracle(options):
    return Server(**OPTIONS[options], accept=ACCEPTS.get(options))


def assert_replays(options, name, company, chunk):
    trace = TRACES[name]
    batches = batches_of(trace)
    path, reports, state = library(company, options, chunk)(trace, batches)
    agree = all(versions_agree(TRACES[name]) for name in company)
    expected, rows, states = oracle(options).train(trace, batches, agree=agree)
    opt_state, each_state = states
    assert_close(path, expected)
    assert_close(state.opt_state, opt_state)
    if options in ACCEPTS:
        assert_close(state.each_state.inner_state, each_state)
    elif "each" in OPTIONS[options]:
        assert_close(state.each_state, each_state)
    ages, metrics = zip(*rows, strict=True)
    used = [len(row) for row in ages]
    np.testing.assert_array_equal(reports.gradients, used)
    np.testing.assert_allclose(reports.staleness, list(map(mean_age, ages)), rtol=1e-6)
    for t, row in enumerate(metrics):
        if row:
            seen = reports.metrics["fit"][t]
            np.testing.assert_allclose(seen, np.mean(row), rtol=1e-5)
    if options in ACCEPTS:  # or nothing is proven about it
        assert 0 < sum(used) < len(trace.update)


@runs
def test_replay_is_a_server_that_keeps_every_version(run):
    assert_replays("momentum", *RUNS[run])


KEPT = [
    ("rate over staleness", "ragged, at once"),
    ("DC-ASGD-c", "four equally late, alone"),
    ("both", "with empty updates"),
    ("both", "fifteen"),
    # at one version an update: the optimizer is told all about it
    ("one chain", "deep"),
    # several: it is told their mean staleness, Rudra's <sigma>
    ("mean staleness", "ragged"),
    ("large ones", "ragged"),
    ("large ones", "four, alone"),
    ("young ones", "ragged"),
]
LONG = [
    ("both", "ragged"),
    ("both", "some equally late, alone"),
    ("one chain", "one by one"),
    ("one chain", "some equally late, alone"),
    ("large ones", "one by one"),
    ("large ones", "four equally late, alone"),
]


@pytest.mark.parametrize(("options", "run"), shortened([*KEPT, *LONG], *KEPT))
def test_every_option_is_the_server_s(options, run):
    assert_replays(options, *RUNS[run])


def test_one_gradient_at_a_time_is_all_of_them_at_once():
    assert_replays("both", "fifteen", ("fifteen",), 1)


def bowl(params, batch, key):
    """The gradient of |x - b|^2 / 2."""
    del key
    return {}, params - batch


@pytest.mark.parametrize(
    ("width", "rate", "momentum", "chunk"),
    [(1, 0.25, 0.5, None), (2, 0.5, 0.0, None), (4, 0.5, 0.0, 3)],
)
def test_every_bit_is_right_where_no_operation_rounds(width, rate, momentum, chunk):
    """Integers and powers of two: float32 holds each number of these few updates."""
    rows = draw(width, [width] * (8 if width == 1 else 6), 3)
    targets = np.random.default_rng(1).integers(-8, 9, (len(rows), width, 2))
    xs, velocity = [np.array([4.0, -8.0])], 0.0
    for t, row in enumerate(rows):
        grads = [xs[v] - targets[t, k] for k, (_, v) in enumerate(row)]
        velocity = momentum * velocity + sum(grads) / width
        xs.append(xs[-1] - rate * velocity)
    trace = trace_of(rows)
    replay = dj.replay(trace, bowl, optax.sgd(rate, momentum=momentum), chunk=chunk)
    start = jnp.asarray(xs[0], jnp.float32)
    path, _, _ = follower(replay)(trace, targets.astype(np.float32), params=start)
    np.testing.assert_array_equal(path, xs[1:])


def keys_of(key, t, width):
    """Of the gradients of update t."""
    return jax.vmap(jax.random.fold_in, (None, 0))(
        jax.random.fold_in(key, t), jnp.arange(width)
    )


@pytest.mark.parametrize("name", ["serial", "four that agree"])
def test_versions_that_agree_are_serial_sgd(name):
    """Papers I10: the gradients of an update are one batch at today's parameters."""
    trace = TRACES[name]
    width = trace.staleness.shape[1]
    batches = batches_of(trace)
    path, _, _ = library((name,), "momentum")(trace, batches)

    def step(carry, inputs):
        params, state = carry
        t, batch = inputs
        keys = keys_of(KEY, t, width)
        _, grads = jax.vmap(grad_fn, (None, 0, 0))(params, batch, keys)
        mean = jax.tree.map(lambda g: (g.sum(0) / width).astype(g.dtype), grads)
        updates, state = MOMENTUM.update(mean, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    serial = jax.jit(lambda carry, inputs: jax.lax.scan(step, carry, inputs)[1])
    inputs = jnp.arange(trace.num_updates), batches
    expected = serial((PARAMS, MOMENTUM.init(PARAMS)), inputs)
    assert_close(path, expected)


WORKERS, BATCH, UPDATES = 4, 8, 50


def mean_squares(params, batch):
    features, targets = batch
    return jnp.mean((jnp.tanh(features @ params) - targets) ** 2)


def mean_squares_grad(params, batch, key):
    del key
    return {}, jax.grad(mean_squares)(params, batch)


@functools.cache
def hardsync():
    trace = trace_of([[(w, t) for w in range(WORKERS)] for t in range(UPDATES)])
    return trace, follower(dj.replay(trace, mean_squares_grad, SGD))


@pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))
def test_hardsync_is_serial_sgd_on_the_union_of_the_batches(seed):
    """Papers I10, to round-off after fifty updates."""
    rng = np.random.default_rng(seed)
    shape = UPDATES, WORKERS, BATCH
    features = rng.normal(size=(*shape, 3)).astype(np.float32)
    targets = rng.normal(size=shape).astype(np.float32)
    params = start = jnp.asarray(rng.normal(size=3), jnp.float32)
    trace, follow = hardsync()
    path, _, _ = follow(trace, (features, targets), params=start)
    union = features.reshape(UPDATES, -1, 3), targets.reshape(UPDATES, -1)
    for t in range(UPDATES):
        params -= 0.1 * union_gradient(params, pick(union, t))
    np.testing.assert_allclose(path[-1], params, rtol=1e-6, atol=1e-6)


union_gradient = jax.jit(jax.grad(mean_squares))


SIZE = 96  # at least as many as gradients in any trace


def log():
    """Writes down what each gradient is told, one after the other."""

    def init(params):
        del params
        rows = {"staleness": jnp.int32, "worker": jnp.int32, "moved": jnp.float32}
        return jnp.int32(0), {name: jnp.zeros(SIZE, d) for name, d in rows.items()}

    def update(updates, state, params, *, staleness, stale_params, worker):
        place, rows = state
        assert staleness.dtype == worker.dtype == jnp.int32
        told = {
            "staleness": staleness,
            "worker": worker,
            "moved": jnp.float32(params["version"] - stale_params["version"]),
        }
        rows = {name: rows[name].at[place].set(told[name]) for name in rows}
        return updates, (place + 1, rows)

    return optax.GradientTransformationExtraArgs(init, update)


def counting(seen=None):
    """The leaf `ids` adds up its gradients, any other counts the updates."""

    def update(updates, state, params=None, **extra):
        if seen is not None:
            seen.append(extra)
        ones = optax.tree.ones_like(updates)
        if isinstance(updates, dict) and "ids" in updates:
            ones["ids"] = updates["ids"]
        return ones, state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def reading(params, batch, key):
    """What was read, in the row of a matrix that is the gradient's own."""
    del key
    rows = jax.tree.map(
        lambda p: batch.reshape((-1,) + (1,) * p.ndim) * p[None], params
    )
    return {"read": rows}, optax.tree.zeros_like(params)


def rows_apart(trace):
    width = trace.staleness.shape[1]
    return np.tile(np.eye(width, dtype=np.float32), (trace.num_updates, 1, 1))


def signed(params, batch, key):
    """A one in the place of the gradient's id; and what was read."""
    versions = {name: params[name] for name in ("version", "narrow")}
    metrics, zeros = reading(versions, batch["row"], key)
    return metrics, {**zeros, "ids": jax.nn.one_hot(batch["id"], SIZE)}


@functools.cache
def witness(run):
    """A trace, and what happened along it: path, reports, the last state."""
    name, company, chunk = RUNS[run]
    trace = unit_divisor(TRACES[name])
    ids = np.full(trace.staleness.shape, SIZE - 1)  # of padding: nobody may ask for it
    ids[trace.staleness >= 0] = np.arange(len(trace.update))
    params = {
        "ids": jnp.zeros(SIZE),
        "version": jnp.zeros(()),
        "narrow": jnp.zeros(2, jnp.bfloat16),
    }
    batches = {"id": ids, "row": rows_apart(trace)}
    return trace, *witnesses(company, chunk)(trace, batches, params=params)


@functools.cache
def witnesses(company, chunk):
    traces = [unit_divisor(TRACES[name]) for name in company]
    alone = all(trace.max_gradients == 1 for trace in traces)
    tx = optax.chain(log(), counting()) if alone else counting()
    return follower(dj.replay(traces, signed, tx, each=log(), chunk=chunk))


def unit_divisor(trace):
    return trace_of(rows_of(trace), divisor=np.ones(trace.num_updates))


@runs
def test_each_gradient_is_used_exactly_once(run):
    trace, path, _, _ = witness(run)
    for t, counts in enumerate(path["ids"]):
        used = np.flatnonzero(trace.update <= t)
        np.testing.assert_array_equal(counts, np.isin(np.arange(SIZE), used))


@runs
def test_each_gradient_is_taken_at_its_own_version(run):
    trace, _, reports, _ = witness(run)
    read = reports.metrics["read"]
    for t, row in enumerate(rows_of(trace)):
        # the mean over the update's gradients, each in a place of its own
        expected = np.zeros(trace.staleness.shape[1])
        expected[: len(row)] = [version / len(row) for _, version in row]
        if row:
            np.testing.assert_allclose(read["version"][t], expected, rtol=1e-6)
            narrow = read["narrow"][t, :, 1].astype(np.float32)
            np.testing.assert_allclose(narrow, expected, rtol=2**-6)


@runs
def test_each_is_told_the_age_the_worker_and_the_snapshot_in_order(run):
    trace, _, _, state = witness(run)
    assert_told(state.each_state, trace)


@pytest.mark.parametrize("run", [*ONE, "serial, alone"])
def test_of_one_gradient_an_update_the_optimizer_is_told_the_same(run):
    trace, _, _, state = witness(run)
    assert_told(state.opt_state[0], trace)


def assert_told(log_state, trace):
    place, rows = log_state
    staleness = trace.update - trace.read_version
    assert place == len(staleness)
    np.testing.assert_array_equal(rows["staleness"][:place], staleness)
    np.testing.assert_array_equal(rows["worker"][:place], trace.worker)
    # the parameters count the updates
    np.testing.assert_array_equal(rows["moved"][:place], staleness)


def itself(params, batch, key):
    del batch, key
    return {}, params


def shapes_after(replay, trace, batches, params=PARAMS):
    """What a step would return: traced, not compiled."""
    state = jax.eval_shape(replay.init, params, KEY)
    inputs = pick((trace.arrivals(0, 1), batches), 0)
    return jax.eval_shape(replay.step, state, inputs)


@pytest.mark.parametrize(
    ("name", "spread", "told", "kind"),
    [
        ("deep", 0.0, {"staleness", "stale_params", "worker"}, jnp.int32),
        ("deep", 1.0, {"staleness", "stale_params", "worker"}, jnp.int32),
        ("four equally late", 0.0, {"staleness", "stale_params"}, jnp.int32),
        ("four equally late", 1.0, {"staleness"}, jnp.float32),
        ("ragged", 0.0, {"staleness"}, jnp.float32),
    ],
)
def test_the_optimizer_is_told_what_an_update_s_gradients_share(
    name, spread, told, kind
):
    seen, trace = [], TRACES[name]
    replay = dj.replay(trace, grad_fn, counting(seen), read_spread=spread)
    shapes_after(replay, trace, batches_of(trace))
    for extra in seen:
        assert set(extra) == told
        assert (extra["staleness"].dtype, extra["staleness"].shape) == (kind, ())
    assert seen


@pytest.mark.parametrize("name", ["deep", "ragged"])
def test_transformations_that_take_no_extra_arguments_are_fine(name):
    trace, plain = TRACES[name], optax.GradientTransformation(*optax.scale(-0.1))
    replay = dj.replay(trace, grad_fn, plain, each=plain)
    shapes_after(replay, trace, batches_of(trace))


# everything that a state may hold
FULL = dict(tx=MOMENTUM, each=ADAPTIVE, chunk=3)
REFUSING = dict(tx=MOMENTUM, each=only(young, ADAPTIVE), chunk=3)


def test_a_scan_a_loop_of_steps_and_a_run_in_pieces_are_one_thing():
    trace, stop = TRACES["ragged"], 5
    batches = batches_of(trace)
    replay = dj.replay(trace, grad_fn, **FULL)
    path, reports, scanned = follower(replay)(trace, batches)
    looped, rows = replay.init(PARAMS, KEY), []
    step = jax.jit(replay.step)
    arrivals = trace.arrivals(0, trace.num_updates)
    for t in range(trace.num_updates):
        assert looped.versions.pushed == t
        looped, report = step(looped, (pick(arrivals, t), pick(batches, t)))
        assert_close(looped.params, pick(path, t))
        rows.append(report)
    assert_close(stack(rows), reports)

    whole, all_reports = replay.run(replay.init(PARAMS, fresh_key()), batches)
    assert_close(whole, looped)
    assert_close(whole, scanned)
    assert_close(all_reports, reports)

    def in_pieces(between):
        """The state and the reports of a run that is handed through `between`."""
        pieces = dj.replay(trace, grad_fn, **FULL)
        state = pieces.init(PARAMS, fresh_key())
        state, early = pieces.run(state, pick(batches, slice(stop)))
        state = between(pieces, state)
        state, late = pieces.run(state, pick(batches, slice(stop, None)))
        return state, jax.tree.map(lambda *x: np.concatenate(x), early, late)

    def stopped(pieces, state):
        return restored(host(state), pieces.init(PARAMS, jax.random.key(99)))

    in_two = in_pieces(lambda pieces, state: state)
    assert_close(in_two, (whole, all_reports))  # a program of another length
    assert_same(in_pieces(stopped), in_two)


@pytest.mark.parametrize("name", ["deep", "ragged"])
def test_a_step_returns_the_types_that_init_gave(name):
    trace = TRACES[name]
    replay = dj.replay(trace, grad_fn, **REFUSING)
    shapes = jax.eval_shape(replay.init, PARAMS, KEY)
    assert types(shapes) == types(replay.init(PARAMS, KEY))
    after, report = shapes_after(replay, trace, batches_of(trace))
    assert types(after) == types(shapes)
    assert types(after.params) == types(PARAMS)
    assert (report.staleness.dtype, report.staleness.shape) == (jnp.float32, ())
    assert (report.gradients.dtype, report.gradients.shape) == (jnp.int32, ())


def test_run_donates_its_state_and_leaves_the_user_s_parameters_alone():
    trace = TRACES["ragged"]
    params, key = jax.tree.map(jnp.copy, PARAMS), fresh_key()
    replay = dj.replay(trace, grad_fn, SGD)
    state = replay.init(params, key)
    history = jax.tree.leaves(state.versions.slots)
    replay.run(state, batches_of(trace))
    assert all(slots.is_deleted() for slots in history)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((params, key)))


SEEDS = [trace_of(draw(seed, [3, 2, 3, 1, 3, 2, 3], 4)) for seed in (1, 2, 3)]
RATES = [0.05, 0.1, 0.2]
KEYS = [jax.random.key(seed) for seed in range(3)]


def of_rate(rate):
    """Of several seeds, each with its own trace; the rate may be traced."""
    return dj.replay(SEEDS, grad_fn, optax.sgd(rate), each=ADAPTIVE, chunk=2)


def cell_inputs(cell):
    trace = SEEDS[cell]
    return trace.arrivals(0, trace.num_updates), batches_of(trace, seed=cell)


def test_seeds_with_traces_of_their_own_and_step_sizes_are_one_program():
    traced = []

    @jax.jit
    def alone(rate, key, inputs):
        traced.append(rate)
        replay = of_rate(rate)
        return jax.lax.scan(replay.step, replay.init(PARAMS, key), inputs)

    def init(rate, key):
        return of_rate(rate).init(PARAMS, key)

    def step(state, inputs, rate):
        return of_rate(rate).step(state, inputs)

    rates, keys = jnp.array(RATES), jnp.stack(KEYS)
    axes = dj.ring.vmap_axes(jax.eval_shape(init, RATES[0], KEYS[0]))
    together = jax.vmap(step, (axes, 0, 0), (axes, 0))

    @jax.jit
    def grid(inputs):
        state = jax.vmap(init, out_axes=axes)(rates, keys)
        return jax.lax.scan(lambda s, x: together(s, x, rates), state, inputs)

    inputs = jax.tree.map(
        lambda *leaves: np.stack(leaves, 1), *map(cell_inputs, range(3))
    )
    program = compile_as_usual(grid.lower(inputs))
    assert " scatter(" not in program.as_text()
    state, reports = program(inputs)
    assert state.versions.pushed.shape == ()
    for cell in range(3):
        own_state, own_reports = alone(RATES[cell], KEYS[cell], cell_inputs(cell))
        assert_close(pick(state.params, cell), own_state.params)
        assert_close(pick(state.opt_state, cell), own_state.opt_state)
        assert_close(jax.tree.map(lambda x, c=cell: x[:, c], reports), own_reports)
    assert len(traced) == 1
    server = Server(optax.sgd(RATES[cell]), each=ADAPTIVE)
    path, _, _ = server.train(SEEDS[cell], cell_inputs(cell)[1], KEYS[cell])
    assert_close(own_state.params, pick(path, -1))


def depth_of(replay):
    shapes = jax.eval_shape(replay.init, PARAMS, KEY)
    (capacity,) = {x.shape[0] for x in jax.tree.leaves(shapes.versions.slots)}
    return capacity - 1


def test_the_history_is_as_deep_as_the_deepest_trace():
    shallow, deep = trace_of(draw(1, [2] * 6, 1)), trace_of(draw(2, [2] * 6, 5))
    assert 0 < shallow.max_staleness < deep.max_staleness
    for traces in (deep, [shallow, deep], (deep, shallow)):
        assert depth_of(dj.replay(traces, grad_fn, SGD)) == deep.max_staleness
    allowed = dj.replay(deep, grad_fn, SGD, max_staleness=deep.max_staleness)
    assert depth_of(allowed) == deep.max_staleness


@pytest.mark.parametrize("names", [("deep", "four"), ("four", "deep")])
def test_rows_of_several_traces_are_as_wide_as_the_widest(names):
    """Staleness is then told as a mean, along the narrow one too."""
    seen, traces = [], [TRACES[name] for name in names]
    replay = dj.replay(traces, grad_fn, counting(seen))
    shapes_after(replay, TRACES["four"], batches_of(TRACES["four"]))
    assert {extra["staleness"].dtype for extra in seen} == {jnp.dtype(jnp.float32)}


def test_a_narrow_trace_among_wider_ones_is_padded():
    narrow, wide = TRACES["one by one"], TRACES["four"]
    targets = np.random.default_rng(0).normal(size=(narrow.num_updates, 1, 2))
    padded = np.concatenate([targets, np.full_like(targets, np.nan)], axis=1)
    padded = padded[:, [0, 1, 1, 1]].astype(np.float32)
    start = jnp.array([1.0, -2.0])
    replay = dj.replay([narrow, wide], bowl, SGD)
    inputs = narrow.arrivals(0, narrow.num_updates, width=4), padded
    state, _ = jax.lax.scan(replay.step, replay.init(start, KEY), inputs)
    alone = follower(dj.replay(narrow, bowl, SGD))
    path, _, _ = alone(narrow, targets.astype(np.float32), params=start)
    np.testing.assert_allclose(state.params, path[-1], rtol=1e-6)


@pytest.mark.parametrize("chunk", [None, 1, 50])
def test_a_mean_in_bfloat16_adds_up_in_more_bits(chunk):
    """One after the other, ones would add up to 256 and not to 600."""
    trace = trace_of([[(w, 0) for w in range(600)]])

    def one(params, batch, key):
        return {"one": params + 1}, params + 1

    replay = dj.replay(trace, one, optax.sgd(-1.0), chunk=chunk)
    state = replay.init(jnp.zeros((), jnp.bfloat16), fresh_key())
    state, reports = replay.run(state, np.zeros((1, 600)))
    assert (state.params, state.params.dtype) == (1, jnp.bfloat16)
    assert reports.metrics["one"] == 1


def test_double_precision_is_kept():
    trace = TRACES["ragged"]
    with jax.enable_x64(True):
        replay = dj.replay(trace, bowl, **REFUSING)
        start = jnp.array([1.0, -2.0])
        batches = batches_of(trace)["target"].astype(np.float64)
        after, report = shapes_after(replay, trace, batches, start)
        assert types(after) == types(jax.eval_shape(replay.init, start, KEY))
        assert after.params.dtype == jnp.float64
        assert (report.staleness.dtype, report.gradients.dtype) == ("float32", "int32")


def test_weakly_typed_parameters_become_strong_at_once():
    trace, start = TRACES["ragged"], {"x": jnp.asarray(1.0)}
    assert start["x"].weak_type
    replay = dj.replay(trace, itself, **FULL)
    after, _ = shapes_after(replay, trace, np.zeros(trace.staleness.shape), start)
    assert types(after) == types(replay.init(start, KEY))


def test_gradients_that_need_no_data_have_batches_without_leaves():
    trace, start = TRACES["deep"], jnp.array([1.0, -2.0])
    replay = dj.replay(trace, itself, SGD)
    inputs = trace.arrivals(0, trace.num_updates), ()
    state, _ = jax.lax.scan(replay.step, replay.init(start, KEY), inputs)
    path, _, _ = follower(replay)(trace, np.zeros(trace.staleness.shape), params=start)
    assert_close(state.params, path[-1])
    with pytest.raises(ValueError, match=r"`batches`"):
        replay.run(replay.init(start, fresh_key()), ())


def test_parameters_without_leaves_are_fine():
    trace = TRACES["ragged"]
    replay = dj.replay(trace, itself, MOMENTUM, each=ADAPTIVE)
    state, _ = replay.run(replay.init({}, fresh_key()), batches_of(trace))
    assert state.params == {}
    assert state.versions.pushed == trace.num_updates


# what a step costs, read off the compiled program

BIG = {"w": jnp.zeros((100, 200)), "b": jnp.zeros(200)}
N = sum(leaf.nbytes for leaf in BIG.values())
COSTS = {
    "plain": {},
    "everything": {"tx": MOMENTUM, "each": ADAPTIVE},
    "a rule in each": {"tx": MOMENTUM, "each": only(young, ADAPTIVE)},
    "a rule": {"tx": dj.drop_stale(MOMENTUM, 3), "each": ADAPTIVE},
}


def wave(params, batch, key):
    del key
    return {}, jax.tree.map(lambda p: p - jnp.sin(p + batch), params)


def donated(*, workers=8, width=8, depth=16, chunk=4, tx=SGD, **options):
    """The donated step, lowered for shapes alone, and the state's shapes."""
    # of each update one gradient is fresh and one as old as there is
    trace = trace_of(
        [
            [
                (workers - 1 - k % workers, t - min(t, k * depth // (width - 1)))
                for k in range(width)
            ]
            for t in range(depth + 1)
        ]
    )
    replay = dj.replay(trace, wave, tx, chunk=chunk, **options)
    state = jax.eval_shape(replay.init, BIG, KEY)
    inputs = pick((trace.arrivals(0, 1), np.zeros((1, width), np.float32)), 0)
    return jax.jit(replay.step, donate_argnums=0).lower(state, inputs), state


def temporary(program):
    return program.memory_analysis().temp_size_in_bytes


def nbytes(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def test_the_number_of_workers_changes_nothing_about_the_program():
    few, many = (donated(workers=workers)[0].as_text() for workers in (2, 64))
    assert few == many


@pytest.mark.parametrize("depth", [4, 64])
def test_a_state_holds_each_version_once_and_the_parameters(depth):
    state = donated(depth=depth)[1]
    assert nbytes(state._replace(key=())) <= (depth + 2) * N + 64


@pytest.mark.parametrize("name", COSTS)
def test_a_step_holds_no_second_history_and_copies_none(name):
    shallow, deep = (
        donated(depth=depth, **COSTS[name])[0].compile() for depth in (8, 64)
    )
    assert temporary(deep) <= temporary(shallow) + N / 4
    accessed = [
        program.cost_analysis()["bytes accessed"] for program in (shallow, deep)
    ]
    assert accessed[1] <= 1.1 * accessed[0]
    assert not re.search(r"f32\[65,100,200\]\S* copy\(", deep.as_text())


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_accelerators_read_all_versions_at_once_and_cpus_one_by_one(platform):
    trace = trace_of([[(k, max(0, t - k)) for k in range(4)] for t in range(5)])
    replay = dj.replay(trace, wave, SGD)
    state = jax.eval_shape(replay.init, BIG, KEY)
    inputs = pick((trace.arrivals(0, 1), np.zeros((1, 4), np.float32)), 0)
    traced = jax.jit(replay.step).trace(state, inputs)
    program = traced.lower(lowering_platforms=(platform,)).as_text()
    leaf = "tensor<4x1x100x200xf32>"
    gathers = re.findall(rf"stablehlo.gather.*-> {leaf}", program)
    assert len(gathers) == (0 if platform == "cpu" else 1)


def test_the_chunk_bounds_the_gradients_that_are_held():
    used = {
        chunk: temporary(donated(width=16, chunk=chunk)[0].compile())
        for chunk in (1, 4, 16)
    }
    for chunk, temporaries in used.items():
        # the parameters read, the gradients taken there, and what is added to
        assert temporaries <= (2.1 * chunk + 1) * N
    assert used[1] < used[4] / 2 < used[16] / 4


@pytest.mark.parametrize("place", ["each", "tx"])
def test_an_update_whose_gradients_are_all_refused_moves_nothing(place):
    trace = TRACES["ragged"]

    def none(gradients, memory, params, **extra_args):
        return jnp.zeros((), bool), gradients, memory

    replay = dj.replay(trace, bowl, **FULL | {place: dj.refusing(FULL[place], none)})
    start = jnp.array([1.0, -2.0])
    fresh = replay.init(start, KEY)
    batches = batches_of(trace)["target"]
    path, reports, state = follower(replay)(trace, batches, params=start)
    np.testing.assert_array_equal(path, np.tile(start, (trace.num_updates, 1)))
    rule = {"each": state.each_state, "tx": state.opt_state}[place]
    assert not rule.applied
    refused = len(trace.update) if place == "each" else trace.num_updates
    assert rule.dropped == rule.dropped_in_row == refused
    if place == "each":
        assert_same(state.opt_state, fresh.opt_state)
        assert_same(rule.inner_state, fresh.each_state.inner_state)
    else:
        assert_same(rule.inner_state, fresh.opt_state.inner_state)
    assert state.version == 0 and (reports.ages == -1).all()
    assert not reports.gradients.any()
    assert not reports.staleness.any()
    assert state.versions.pushed == trace.num_updates


@pytest.mark.parametrize("place", ["each", "tx"])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_staleness_counts_the_updates_that_were_applied(spread, place):
    accepted = np.random.default_rng(1).random(30) < 0.5
    trace = trace_of([[(0, max(0, t - 4))] for t in range(30)])

    def flag(params, batch, key):
        return {}, params * 0 + batch

    def positive(gradients, memory, params, *, staleness, **extra_args):
        return gradients > 0, gradients, memory

    rules = {"each": optax.identity(), "tx": counting()}
    rules[place] = dj.refusing(rules[place], positive)
    replay = dj.replay(trace, flag, **rules, read_spread=spread)
    batches = accepted[:, None].astype(np.float32)
    path, reports, _ = follower(replay)(trace, batches, params=jnp.zeros(()))
    applied = np.concatenate([[0], np.cumsum(accepted)])
    expected = np.array([applied[t] - applied[max(0, t - 4)] for t in range(30)])
    np.testing.assert_array_equal(path, applied[1:])
    np.testing.assert_array_equal(reports.gradients, accepted)
    np.testing.assert_array_equal(reports.staleness[accepted], expected[accepted])
    ages = np.where(accepted, expected, -1)
    np.testing.assert_array_equal(reports.ages, ages[:, None])


# Hogwild!: reads that are torn between versions

TORN_UPDATES = 12


def late_rows(tau, updates, width=1):
    return [[(w, max(0, t - tau)) for w in range(width)] for t in range(updates)]


@functools.cache
def torn(spread, width):
    """(tau, params, seed) -> the version at which each coordinate was read."""
    deepest = trace_of(late_rows(8, TORN_UPDATES, width))
    follow = follower(dj.replay(deepest, reading, counting(), read_spread=spread))

    def versions(tau, params, seed=0):
        trace = trace_of(late_rows(tau, TORN_UPDATES, width))
        key = jax.random.key(seed)
        _, reports, _ = follow(trace, rows_apart(trace), key, params)
        return jax.tree.map(lambda x: np.asarray(x) * width, reports.metrics["read"])

    return versions


@pytest.mark.parametrize("tau", [1, 3, 8])
@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_a_torn_read_takes_each_coordinate_from_the_last_versions(spread, tau):
    size = 2000
    read = torn(spread, 1)(tau, jnp.zeros(size))[:, 0]
    for t in range(TORN_UPDATES):
        span = int(spread * min(t, tau))
        versions, counts = np.unique(read[t], return_counts=True)
        np.testing.assert_array_equal(versions, max(0, t - tau) + np.arange(span + 1))
        # uniform: six standard deviations of a binomial count
        share = size / (span + 1)
        np.testing.assert_allclose(counts, share, atol=6 * share**0.5)


def test_each_torn_read_is_torn_in_another_way():
    params = {"a": jnp.zeros(300), "b": jnp.zeros(300)}
    read, again = (torn(1.0, 2)(8, params, seed) for seed in (0, 1))
    newest, before = 11, 10  # updates, both at the full staleness of 8
    ages = [
        newest - read["a"][newest, 0],
        newest - read["a"][newest, 1],  # another gradient
        newest - read["b"][newest, 0],  # another leaf
        before - read["a"][before, 0],  # another update
        newest - again["a"][newest, 0],  # another key
    ]
    for i, one in enumerate(ages):
        for other in ages[:i]:
            # of 9 equally likely ages a ninth agrees by chance
            assert np.mean(one == other) < 1 / 9 + 6 * (1 / 9 / 300) ** 0.5


def test_a_spread_below_one_version_is_no_spread():
    trace = TRACES["ragged"]
    batches = batches_of(trace)["target"]
    plain, spread = (
        follower(dj.replay(trace, bowl, ADAM, read_spread=share))(
            trace, batches, params=jnp.array([1.0, -2.0])
        )
        for share in (0.0, 0.9 / trace.max_staleness)
    )
    assert_close(plain[0], spread[0])


def test_a_spread_may_be_any_number():
    params = jnp.zeros(2000)
    trace = trace_of(late_rows(8, TORN_UPDATES))
    spread = jnp.float32(0.5)  # not a Python float
    follow = follower(dj.replay(trace, reading, counting(), read_spread=spread))
    _, reports, _ = follow(trace, rows_apart(trace), jax.random.key(0), params)
    assert_same(reports.metrics["read"], torn(0.5, 1)(8, params))


def test_what_was_read_is_the_snapshot_that_is_handed_on():
    def compare(updates, state, params, *, stale_params, **extra):
        return updates, state + jnp.abs(updates - stale_params)

    def move(updates, state, params=None, **extra):
        return jnp.ones_like(updates), compare(updates, state, params, **extra)[1]

    each = optax.GradientTransformationExtraArgs(jnp.zeros_like, compare)
    tx = optax.GradientTransformationExtraArgs(jnp.zeros_like, move)
    trace = trace_of(late_rows(6, TORN_UPDATES))
    # the gradient is what was read
    replay = dj.replay(trace, itself, tx, each=each, read_spread=1.0)
    batches = np.zeros((TORN_UPDATES, 1))
    path, _, state = follower(replay)(trace, batches, params=jnp.zeros(50))
    np.testing.assert_array_equal(path[-1], np.full(50, TORN_UPDATES))
    np.testing.assert_array_equal(state.each_state, np.zeros(50))
    np.testing.assert_array_equal(state.opt_state, np.zeros(50))


def sparse(params, batch, key):
    """A term of sum x^2 / 2 that touches a few coordinates."""
    del key
    return {}, jnp.zeros_like(params).at[batch].set(params[batch])


SPARSE_UPDATES, COORDINATES = 3000, 1500


@functools.cache
def least_squares(tau, spread):
    trace = trace_of(late_rows(tau, SPARSE_UPDATES))
    replay = dj.replay(trace, sparse, optax.sgd(0.5), read_spread=spread)
    return trace, follower(replay)


@pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))
def test_hogwild_on_sparse_terms_lies_on_the_serial_curve(seed):
    """Papers D.1: a term touches 3 of 1500 coordinates, tau = 9."""
    rng = np.random.default_rng(seed)
    start = jnp.asarray(rng.normal(size=COORDINATES), jnp.float32)
    touched = rng.integers(COORDINATES, size=(SPARSE_UPDATES, 1, 3))

    def log_error(tau, spread):
        trace, follow = least_squares(tau, spread)
        path, _, _ = follow(trace, touched, params=start)
        return np.log(np.linalg.norm(np.asarray(path, np.float64), axis=1))

    serial, hogwild = log_error(0, 0.0), log_error(9, 1.0)
    assert serial[-1] < serial[0] - 2
    # within 9 updates a coordinate is touched twice with probability 9 * 3 / 1500
    np.testing.assert_allclose(
        hogwild - hogwild[0], serial - serial[0], rtol=0.03, atol=0.03
    )


def test_hogwild_on_dense_terms_does_not():
    def last(tau, spread):
        trace = trace_of(late_rows(tau, 150))
        replay = dj.replay(trace, itself, optax.sgd(0.75), read_spread=spread)
        batches = np.zeros((150, 1), np.float32)
        path, _, _ = follower(replay)(trace, batches, params=jnp.ones(20))
        return np.abs(path[-1]).max()

    assert last(0, 0.0) < 1e-9 < 100 < last(9, 1.0)


def weighed():
    """Sums w + 1 times the gradient of worker w."""

    def add(total, gradients, workers):
        weights = jnp.where(workers < 0, 0.0, workers + 1.0)
        return total + jnp.tensordot(weights, gradients, axes=1)

    def finish(total):
        return total, jnp.zeros_like(total)

    return dj.Aggregation(jnp.zeros_like, add, finish)


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("threshold", [-np.inf, 0.0])
def test_a_rule_in_place_of_the_mean_is_told_whose_gradients_are_there(
    threshold, chunk
):
    trace = TRACES["with empty updates"]
    targets = batches_of(trace)["target"]
    xs = [np.array([1.0, -2.0])]
    for t, row in enumerate(rows_of(trace)):
        grads = [xs[v] - targets[t, k] for k, (_, v) in enumerate(row)]
        weights = [
            worker + 1 if g[0] > threshold else 0
            for g, (worker, _) in zip(grads, row, strict=True)
        ]
        direction = sum((w * g for w, g in zip(weights, grads, strict=True)), 0 * xs[0])
        xs.append(xs[-1] - 0.01 * direction)
    refuse = {"each": only(lambda grads, staleness: grads[0] > threshold)}
    replay = dj.replay(
        trace,
        bowl,
        optax.sgd(0.01),
        aggregation=weighed(),
        chunk=chunk,
        **(refuse if threshold == 0.0 else {}),
    )
    start = jnp.asarray(xs[0], jnp.float32)
    path, _, _ = follower(replay)(trace, targets, params=start)
    np.testing.assert_allclose(path, xs[1:], rtol=1e-5, atol=1e-6)


# Ringleader's tables


def ringleader(order, workers, targets, start, rate):
    """Maranjyan and Richtarik's server, arrival by arrival (papers B.11).

    Returns the rows (worker, version) of the gradients that were new at each update,
    and the parameters after it.
    """
    xs, reads = [start], [0] * workers
    table = [[] for _ in range(workers)]
    surplus = [[] for _ in range(workers)]
    rows, row, unserved = [], [], set()
    for worker in order:
        gradient = xs[reads[worker]] - targets(len(rows), len(row))
        row.append((worker, reads[worker]))
        if not unserved:  # first phase: until everybody has delivered
            table[worker].append(gradient)
            if not all(table):
                continue
            unserved = set(range(workers)) - {worker}
        elif worker in unserved:
            table[worker].append(gradient)
            unserved.remove(worker)
        else:
            surplus[worker].append(gradient)
            continue
        direction = sum(sum(gs) / len(gs) for gs in table) / workers
        xs.append(xs[-1] - rate * direction)
        reads[worker] = len(xs) - 1
        rows.append(row)
        row = []
        if not unserved:
            table, surplus = surplus, [[] for _ in range(workers)]
    return rows, xs[1:]


@functools.cache
def target(t, k):
    return np.random.default_rng((t, k)).normal(size=3)


def assert_leads(order, workers, chunk=None):
    start = np.array([1.0, -2.0, 0.5])
    rows, xs = ringleader(order, workers, target, start, 0.3)
    trace = trace_of(rows)
    targets = np.zeros((*trace.staleness.shape, 3), np.float32)
    for t, row in enumerate(rows):
        targets[t, : len(row)] = [target(t, k) for k in range(len(row))]
    tables = dj.cluster.protocols.ringleader().aggregation(workers)
    replay = dj.replay(trace, bowl, optax.sgd(0.3), aggregation=tables, chunk=chunk)
    start = jnp.asarray(start, jnp.float32)
    path, _, _ = follower(replay)(trace, targets, params=start)
    np.testing.assert_allclose(path, xs, rtol=1e-5, atol=1e-6)
    return rows


@pytest.mark.parametrize(
    ("workers", "chunk"), [(1, None), (2, None), (5, None), (3, 2)]
)
def test_ringleader_s_tables_are_those_of_its_server(workers, chunk):
    # the first worker delivers half of the gradients
    speeds = np.ones(workers)
    speeds[0] = max(1, workers - 1)
    order = np.random.default_rng(workers).choice(
        workers, size=16 * workers, p=speeds / speeds.sum()
    )
    rows = assert_leads(order.tolist(), workers, chunk)
    # or nothing is proven: several rounds, surplus in some
    assert len(rows) >= 2 * workers
    assert workers == 1 or max(map(len, rows[1:])) > 1


def test_slots_without_a_gradient_leave_ringleader_s_tables_alone():
    tables = dj.cluster.protocols.ringleader().aggregation(3)
    state = tables.add(tables.init(jnp.zeros(2)), jnp.ones((2, 2)), jnp.array([0, 2]))
    nobody = jnp.full((2, 2), jnp.nan), jnp.array([-1, -1])
    assert_same(tables.add(state, *nobody), state)


def test_the_cluster_s_ringleader_hands_its_tables_what_its_server_hands_them():
    workers = 4
    cluster = dj.cluster.Cluster(
        workers, dj.cluster.exponential(1.0), slowdown=[1.0, 1.0, 2.0, 6.0]
    )
    protocol = dj.cluster.protocols.ringleader()
    trace = dj.cluster.simulate(cluster, protocol, 24, seed=1)
    assert trace.max_staleness <= 2 * workers - 2
    rows = assert_leads(trace.worker.tolist(), workers)
    assert rows == rows_of(trace)


# theory


def edge(tau):
    """Papers E.5: x_{t+1} = x_t - a x_{t-tau} is stable for 0 < a < edge(tau)."""
    return 2 * np.sin(np.pi / (2 * (2 * tau + 1)))


def spectral_radius(tau, a):
    """Of z^{tau+1} - z^tau + a."""
    polynomial = np.zeros(tau + 2)
    polynomial[:2] = 1, -1
    polynomial[-1] += a
    return np.max(np.abs(np.roots(polynomial)))


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_round_robin_asgd_is_stable_up_to_the_edge_of_its_delay(workers):
    """Papers I6 and E.5: P workers in turn are a delay of P - 1."""
    tau = workers - 1
    window = 2 * (2 * tau + 1)  # a period of the slowest root at the edge
    updates = 400 * (2 * tau + 1)
    trace = trace_of([[(t % workers, max(0, t - tau))] for t in range(updates)])
    step_sizes = np.array([0.98, 1.02]) * edge(tau)

    def train(rate):
        replay = dj.replay(trace, itself, optax.sgd(rate))

        def body(state, inputs):
            state, _ = replay.step(state, inputs)
            return state, state.params

        inputs = trace.arrivals(0, updates), np.zeros((updates, 1))
        state = replay.init(jnp.ones((), jnp.float64), KEY)
        return jax.lax.scan(body, state, inputs)[1]

    with jax.enable_x64(True):
        path = np.asarray(jax.jit(jax.vmap(train))(jnp.asarray(step_sizes)))
    windows = updates // window
    norms = np.linalg.norm(path[:, : windows * window].reshape(2, windows, -1), axis=2)
    late = slice(windows // 2, None)
    slopes = np.polyfit(window * np.arange(windows)[late], np.log(norms[:, late].T), 1)
    assert slopes[0, 0] < 0 < slopes[0, 1]
    expected = np.log([spectral_radius(tau, a) for a in step_sizes])
    # the other roots and the ripple of the slowest one leave a little
    np.testing.assert_allclose(slopes[0], expected, rtol=0.02)


def test_rows_that_ask_for_what_was_never_kept_report_nan():
    trace, other = trace_of(late_rows(2, 8)), trace_of(late_rows(5, 8))

    def logged(params, batch, key):
        del batch, key
        return {"loss": params**2}, params

    replay = dj.replay(trace, logged, SGD)
    step = jax.jit(replay.step)

    def reported(rows, updates):
        state = replay.init(jnp.ones(()), KEY)
        for row in range(updates):
            state, _ = step(state, (pick(trace.arrivals(0, updates), row), np.ones(1)))
        report = step(state, (pick(rows, 0), np.ones(1)))[1]
        return [float(report.staleness), float(report.metrics["loss"])]

    own = reported(trace.arrivals(3, 4), 3)
    assert own[0] == 2
    assert np.isfinite(own).all()
    assert np.isnan(reported(other.arrivals(6, 7), 6)).all()  # of another trace
    assert np.isnan(reported(trace.arrivals(3, 4), 1)).all()  # of another time


def test_a_deeper_history_reports_nan_until_it_holds_what_is_read():
    deep, shallow = trace_of(late_rows(4, 12)), trace_of(late_rows(2, 12))
    key = jax.random.key(0)
    replay = dj.replay(shallow, itself, SGD)
    state, _ = replay.run(replay.init(jnp.ones(()), key), np.ones((5, 1)))
    replay = dj.replay(deep, itself, SGD)
    state = dj.resize_history(state, replay.init(jnp.ones(()), key))
    _, reports = replay.run(state, np.ones((7, 1)))
    # versions 2, 3 and 4 were kept, and update 5 reads version 1
    np.testing.assert_array_equal(reports.staleness, [np.nan] + [4.0] * 6)


# bad input

SINGLE = TRACES["one by one"]


def construct(trace=SINGLE, grad_fn=grad_fn, tx=SGD, **options):
    return dj.replay(trace, grad_fn, tx, **options)


def one_step(grad_fn=grad_fn, width=1, **options):
    """A step with a batch of `width` gradients, where the trace has one."""
    batch = {"features": np.zeros((1, width, 3)), "target": np.zeros((1, width, 2))}
    return shapes_after(construct(grad_fn=grad_fn, **options), SINGLE, batch)


def too_long():
    replay = construct()
    batches = jax.tree.map(lambda x: np.concatenate([x, x]), batches_of(SINGLE))
    return replay.run(replay.init(PARAMS, fresh_key()), batches)


def row_of_another_width():
    replay, wide = construct(), TRACES["four"]
    return shapes_after(replay, wide, batches_of(wide))


def state_of_a_shallower_trace():
    state = jax.eval_shape(construct(ONE["serial"]).init, PARAMS, KEY)
    inputs = pick((SINGLE.arrivals(0, 1), batches_of(SINGLE)), 0)
    return jax.eval_shape(construct().step, state, inputs)


def norms(updates, params):
    """One number for all of a leaf's coordinates."""
    del params
    return jax.tree.map(jnp.linalg.norm, updates)


def integers(params, batch, key):
    return {}, {**params, "scale": jnp.int32(1)}


BAD = {
    "no optimizer": (lambda: construct(tx=0.1), TypeError, r"`tx` .* got 0\.1"),
    "an optimizer that pairs late gradients": (
        lambda: construct(tx=optax.scale_by_lbfgs()).init(PARAMS, KEY),
        ValueError,
        r"`tx` must not hold optax's scale_by_lbfgs: .* Use an optimizer that reads",
    ),
    "a rule of each that pairs late gradients": (
        lambda: construct(each=optax.scale_by_lbfgs()).init(PARAMS, KEY),
        ValueError,
        r"`each` must not hold optax's scale_by_lbfgs: ",
    ),
    "no transformation of each": (
        lambda: construct(each=dj.modulation.inverse),
        TypeError,
        r"`each` .* got <function inverse",
    ),
    "a trace deeper than the history": (
        lambda: construct(max_staleness=SINGLE.max_staleness - 1),
        ValueError,
        rf"`trace`.*\b{SINGLE.max_staleness}\b.*`max_staleness`",
    ),
    "one of several deeper than the history": (
        lambda: construct(trace=[TRACES["serial"], SINGLE], max_staleness=1),
        ValueError,
        rf"`trace`.*\b{SINGLE.max_staleness}\b.*`max_staleness`",
    ),
    "a negative depth": (
        lambda: construct(max_staleness=-1),
        ValueError,
        r"`max_staleness` .* got -1",
    ),
    "half a version of depth": (
        lambda: construct(max_staleness=7.5),
        TypeError,
        r"`max_staleness` .* got 7\.5",
    ),
    "chunk 0": (lambda: construct(chunk=0), ValueError, r"`chunk` .* got 0"),
    "chunk -2": (lambda: construct(chunk=-2), ValueError, r"`chunk` .* got -2"),
    "chunk 1.5": (lambda: construct(chunk=1.5), TypeError, r"`chunk` .* got 1\.5"),
    **{
        f"read_spread {bad}": (
            lambda bad=bad: construct(read_spread=bad),
            ValueError,
            rf"`read_spread` .*got {bad}",
        )
        for bad in (-0.1, 1.5, np.nan, np.inf)
    },
    "a batch of two for one gradient": (
        lambda: one_step(width=2),
        ValueError,
        r"`batches` must have a leading axis of 1, .* got shape \(2, 3\)",
    ),
    "a row of another trace": (
        row_of_another_width,
        ValueError,
        r"`arrivals` .* leading axis of 1, .* got shape \(4,\) at .* width=1",
    ),
    "a state of a shallower trace": (
        state_of_a_shallower_trace,
        ValueError,
        rf"`state` .* staleness of 0, got a trace of {SINGLE.max_staleness}: .*resize",
    ),
    "a rule that answers a number": (
        lambda: one_step(each=only(lambda grads, staleness: 0.5)),
        TypeError,
        r"`accept\(gradients, \.\.\.\)` must be a bool, got float32",
    ),
    "a rule that answers a bool for each leaf": (
        lambda: one_step(each=only(lambda grads, staleness: jnp.ones(3, bool))),
        ValueError,
        r"`accept\(gradients, \.\.\.\)` must be a scalar, got shape \(3,\)",
    ),
    "a rule of each that is no gradient": (
        lambda: one_step(each=optax.stateless(norms)),
        TypeError,
        r"`each` must return gradients of the parameters' shapes, .*float32\[2\].*'b'",
    ),
    "a combination that is no gradient": (
        lambda: one_step(
            aggregation=dj.Aggregation(
                lambda params: (), lambda s, *_: s, lambda s: (jnp.zeros(()), s)
            )
        ),
        TypeError,
        r"`aggregation` must return a direction of the parameters' shapes",
    ),
    "gradients of another tree": (
        lambda: one_step(grad_fn=lambda p, batch, key: ({}, p["layer"])),
        (TypeError, ValueError),
        r"`grad_fn` must .* like the parameters.* for None at",
    ),
    "gradients of another shape": (
        lambda: one_step(grad_fn=lambda p, *_: ({}, {**p, "scale": jnp.zeros(3)})),
        (TypeError, ValueError),
        r"`grad_fn` must .* like the parameters.*'scale'",
    ),
    "gradients of another type": (
        lambda: one_step(grad_fn=lambda p, *_: ({}, optax.tree.cast(p, jnp.float32))),
        (TypeError, ValueError),
        r"`grad_fn` must .* like the parameters.*'b'",
    ),
    "the gradients and the metrics": (
        lambda: one_step(grad_fn=lambda p, batch, key: (p, jnp.zeros(()))),
        TypeError,
        r"`grad_fn` must return \(metrics, gradients\) .* like the parameters",
    ),
    "integer gradients": (
        lambda: one_step(grad_fn=integers),
        TypeError,
        r"gradients like the parameters, got int32\[\] for float32\[\] at \['scale'\]",
    ),
    "more batches than updates": (
        too_long,
        ValueError,
        r"`batches` must end with the trace, got 28 updates, of which 14 are left",
    ),
    "tables of no workers": (
        lambda: dj.cluster.protocols.ringleader().aggregation(0),
        ValueError,
        r"`num_workers` .* got 0",
    ),
}


def test_fresh_gradients_may_be_paired():
    """The pairs of L-BFGS are right where no gradient is late."""
    assert TRACES["serial"].max_staleness == 0
    construct(trace=TRACES["serial"], tx=optax.scale_by_lbfgs())


@pytest.mark.parametrize("name", BAD)
def test_a_bad_argument_is_named_with_its_value(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


def test_the_loss_goes_with_its_gradient_where_it_is_the_only_metric():
    """Each gradient has its own, and the server their mean."""

    def recorder():
        def init(params):
            del params
            return jnp.full((), jnp.nan)

        def update(updates, state, params=None, *, value=None, **extra_args):
            del state, params, extra_args
            return updates, jnp.full((), -1.0) if value is None else value

        return optax.GradientTransformationExtraArgs(init, update)

    cluster = dj.cluster.Cluster(3, dj.cluster.exponential(1.0))
    rule = dj.cluster.protocols.k_async(2)
    trace = dj.cluster.simulate(cluster, rule, 5, seed=0)
    batches = jnp.arange(10.0).reshape(5, 2)

    def trained(grad_fn):
        tx = optax.chain(optax.sgd(0.1), recorder())
        training = dj.replay(trace, grad_fn, tx, each=recorder())
        state = training.init(jnp.zeros(()), jax.random.key(0))
        state, report = training.run(state, batches)
        return state.opt_state[-1], state.each_state, report.metrics

    def loss(x, batch, key):
        return 0.5 * (x - batch) ** 2, x - batch

    def metrics(x, batch, key):
        return {"loss": 0.5 * (x - batch) ** 2}, x - batch

    mean, own, reported = trained(loss)
    np.testing.assert_allclose(mean, reported[-1])
    assert not np.isclose(own, mean)  # the last gradient's own, of two
    assert [float(found) for found in trained(metrics)[:2]] == [-1.0, -1.0]
