"""Traces by hand, a small net with batches, and comparisons of results."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj


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
    """Loss of a small net with noisy targets; the bfloat16 leaf is a separate term."""
    w, b = params["layer"]["w"], params["layer"]["b"]
    # the bits of the key: faster to compile than a random draw
    noise = (jax.random.key_data(key) % 1024).astype(jnp.float32) / 2048
    target = batch["target"] + noise
    output = params["scale"] * jnp.tanh(batch["features"] @ w)
    fit = jnp.sum((output - target) ** 2) / 4
    rest = jnp.sum((b - target.astype(b.dtype)) ** 2)
    return fit + rest.astype(jnp.float32), {"fit": fit}


def grad_fn(params, batch, key):
    """Metrics and gradient; no loss, whose bfloat16 part would have 8 bits only."""
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
    """Rows of the given sizes; each gradient has a random staleness <= `deepest`."""
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


# name: (a trace, the traces of its program, gradients taken at once); if the trace is
# the only one, the program may use what is the same in all of its updates
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
    """A parameter server from its definition: it keeps all versions, in one loop.

    `each` transforms each gradient, with one state for all; `tx` transforms the mean.
    Versions count the updates that are applied: an update whose gradients are all
    refused makes no version. An update without gradients makes one, but moves nothing.
    """

    def __init__(self, tx, *, each=None, accept=None):
        tx = optax.with_extra_args_support(tx)
        each = optax.with_extra_args_support(each or optax.identity())
        self.init_tx, self.update_tx = tx.init, jax.jit(tx.update)
        self.init_each, self.update_each = each.init, jax.jit(each.update)
        self.accept = accept

    def train(self, trace, batches, key=KEY, params=PARAMS, *, agree=False):
        """The parameters after each update, the reports, and the last states.

        With `agree`, the gradients of each update were taken at the same version.
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
                args = {
                    "staleness": jnp.int32(tau),
                    "stale_params": stale_params,
                    "worker": jnp.int32(worker),
                }
                grads, each_state = self.update_each(grads, each_state, params, **args)
                accepted.append(grads)
                ages.append(tau)
            reports.append((ages, metrics))
            if not accepted:
                versions.append(params)
                applied.append(applied[t] + (not row))
                continue
            size = divisor[t] * len(accepted) / len(row)
            mean = mean_of(accepted, size, params)
            args = {"staleness": jnp.float32(mean_age(ages))}
            if agree:
                version = row[0][1]
                args = {
                    "staleness": jnp.int32(mean_age(ages)),
                    "stale_params": versions[version],
                }
            updates, opt_state = self.update_tx(mean, opt_state, params, **args)
            versions.append(optax.apply_updates(params, updates))
            applied.append(applied[t] + 1)
        return stack(versions[1:]), reports, (opt_state, each_state)


one_gradient = jax.jit(grad_fn)


def mean_of(trees, divisor, like):
    """The sum of gradients, in order and in double precision, divided by `divisor`."""

    def mean(leaf, *leaves):
        total = sum((np.asarray(x, np.float64) for x in leaves), np.zeros(leaf.shape))
        return jnp.asarray(total / divisor, leaf.dtype)

    return jax.tree.map(mean, like, *trees)


def mean_age(ages):
    return sum(ages) / max(1, len(ages))


def types(tree):
    return jax.tree.map(jax.typeof, tree)


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def pick(tree, i):
    return jax.tree.map(lambda x: x[i], tree)


def is_key(x):
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def host(tree):
    """A tree as in a checkpoint: only NumPy arrays, and keys as their numbers."""
    return jax.tree.map(
        lambda x: np.array(jax.random.key_data(x) if is_key(x) else x), tree
    )


def assert_same(ours, theirs):
    """Equal bit for bit."""
    jax.tree.map(np.testing.assert_array_equal, host(ours), host(theirs))


def assert_close(ours, theirs):
    """Equal up to the order of sums and the fusions of XLA, which round differently.

    In the leaf `b`, in bfloat16 with 8 bits, that is a few units in the last place.
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
    """A compiled scan: (parameters after each update, reports, last state)."""

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


ADAPTIVE = dj.compensate_delay(0.5, adaptive=True, decay=0.75)


def young(grads, staleness):
    return staleness <= 1


def only(accept, each=None):
    """`each`, but only for gradients that `accept(gradients, staleness)` accepts."""

    def rule(grads, memory, params, *, staleness, **extra_args):
        return accept(grads, staleness), grads, memory

    return dj.refusing(each or optax.identity(), rule)


def bowl(params, batch, key):
    """The gradient of |x - b|^2 / 2."""
    return {}, params - batch


def counting(seen=None):
    """An optimizer: leaf `ids` sums its gradients, other leaves count the updates."""

    def update(updates, state, params=None, **extra):
        if seen is not None:
            seen.append(extra)
        ones = optax.tree.ones_like(updates)
        if isinstance(updates, dict) and "ids" in updates:
            ones["ids"] = updates["ids"]
        return ones, state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def reading(params, batch, key):
    """The parameters that were read, in the row of a matrix for this gradient."""
    rows = jax.tree.map(
        lambda p: batch.reshape((-1,) + (1,) * p.ndim) * p[None], params
    )
    return {"read": rows}, optax.tree.zeros_like(params)


def rows_apart(trace):
    width = trace.staleness.shape[1]
    return np.tile(np.eye(width, dtype=np.float32), (trace.num_updates, 1, 1))


def itself(params, batch, key):
    return {}, params


def shapes_after(replay, trace, batches, params=PARAMS):
    """The shapes that a step returns, by tracing alone."""
    state = jax.eval_shape(replay.init, params, KEY)
    inputs = pick((trace.arrivals(0, 1), batches), 0)
    return jax.eval_shape(replay.step, state, inputs)


# a replay whose state has all possible fields
FULL = dict(tx=MOMENTUM, each=ADAPTIVE, chunk=3)


# Hogwild!: a read has coordinates of several versions

TORN_UPDATES = 12


def late_rows(tau, updates, width=1):
    return [[(w, max(0, t - tau)) for w in range(width)] for t in range(updates)]
