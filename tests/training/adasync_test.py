"""AdaSync, compared with an event loop and a server in plain Python."""

import functools
import heapq
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax.cluster import protocols
from tests.support.cases import shortened
from tests.training.traces import pick, types

SCHEMES = ["k_sync", "k_batch_sync", "k_async", "k_batch_async"]
schemes = pytest.mark.parametrize("scheme", SCHEMES)

WORKERS, UPDATES, DEPTH = 6, 60, 60
SLOW = [1.0, 1.0, 1.5, 1.0, 3.0, 0.5]
CLUSTER = dj.cluster.Cluster(WORKERS, dj.cluster.exponential(1.0), slowdown=SLOW)


def service_table(seed, draws=1000):
    """Seconds of each worker's tasks, in order: every worker has its own stream."""
    streams = [np.random.SeedSequence(seed, spawn_key=(w,)) for w in range(WORKERS)]
    return [
        factor * np.random.default_rng(stream).exponential(1.0, draws)
        for factor, stream in zip(SLOW, streams, strict=True)
    ]


def dutta(scheme, tasks):
    """Dutta et al.'s schemes (papers B.3), event by event.

    `tasks[w]` yields the seconds of worker w's tasks. A generator that is sent the K of
    each update and yields its time and the (worker, version read) of its gradients.
    """
    workers = range(len(tasks))
    canceled = scheme in ("k_sync", "k_batch_sync")  # others are canceled
    distinct = scheme in ("k_sync", "k_async")  # learners: who is done idles
    events, now, row = [], 0.0, None

    def start(worker, version):
        heapq.heappush(events, (now + next(tasks[worker]), worker, version))

    for worker in workers:
        start(worker, 0)
    for t in itertools.count():
        size = yield now, row
        row = []
        while len(row) < size:
            now, worker, version = heapq.heappop(events)
            row.append((worker, version))
            if not distinct and len(row) < size:
                start(worker, t)
        if canceled:
            events.clear()
            restarted = workers
        else:
            restarted = [w for w, _ in row] if distinct else [row[-1][0]]
        for worker in restarted:
            start(worker, t + 1)


def rule(scheme, workers, initial_k, fall):
    """Papers B.4: the K of least error per time once the loss has fallen `fall` times.

    K^2 / (P - K) (sync, async) or K^2 (the batch variants) grows by `fall`.
    """
    if "batch" in scheme:
        k = initial_k * math.sqrt(fall)
    elif initial_k == workers:
        k = workers
    else:
        c = initial_k**2 / (workers - initial_k) * fall
        # the positive root of K^2 + c K - c P
        k = 2 * workers / (1 + math.sqrt(1 + 4 * workers / c))
    return min(max(round(k), 1), workers)


class Chooser:
    """K from the mean losses of the first interval and of the last; it never falls."""

    def __init__(self, scheme, workers, initial_k, interval_seconds):
        self.rule = functools.partial(rule, scheme, workers, initial_k)
        self.k, self.interval_seconds = initial_k, interval_seconds
        self.begin, self.losses, self.first = 0.0, [], None

    def after(self, now, loss):
        """Counts an update that ended at `now`."""
        self.losses.append(loss)
        if now - self.begin >= self.interval_seconds:
            mean = sum(self.losses) / len(self.losses)
            self.first = mean if self.first is None else self.first
            self.k = max(self.k, self.rule(self.first / mean))
            self.begin, self.losses = now, []


def serve(scheme, tasks, chooser, train, updates=UPDATES):
    """For each update its K, time and gradients; `train(t, row)` returns its loss."""
    history, cluster = [], dutta(scheme, tasks)
    next(cluster)
    for t in range(updates):
        k = chooser.k
        now, row = cluster.send(k)
        history.append((k, now, row))
        chooser.after(now, float(train(t, row)))
    return history


def assert_schedule(reports, history, depth=DEPTH):
    """Workers, versions and times of deliveries: all that gradients do not change."""
    ks, times, rows = zip(*history, strict=True)
    np.testing.assert_array_equal(reports.k, ks)
    # the library's clocks are in float32
    np.testing.assert_allclose(
        np.cumsum(reports.seconds, dtype=float), times, rtol=1e-5
    )
    for t, row in enumerate(rows):
        workers = [worker for worker, _ in row]
        padding = [-1] * (WORKERS - len(row))
        assert reports.workers[t].tolist() == workers + padding
        ages = [min(t - version, depth) for _, version in row]
        np.testing.assert_allclose(reports.staleness[t], np.mean(ages), rtol=1e-6)


def given(params, batch, key):
    """No gradient: the loss is given; the slot has the parameters that were read."""
    read = batch["slot"] * params
    return {"loss": batch["loss"], "read": read}, jnp.zeros_like(params)


def counting():
    """A transformation with which the parameters are the number of their version."""
    return optax.stateless(lambda updates, params: optax.tree.ones_like(updates))


FIXED = {
    "k_sync": protocols.k_sync,
    "k_batch_sync": protocols.k_batch_sync,
    "k_async": protocols.k_async,
    "k_batch_async": protocols.k_batch_async,
}


def adasync(scheme, *, seed, initial_k=2, interval_seconds=4.0, **options):
    options = dict(cluster=CLUSTER, grad_fn=given, tx=counting()) | options
    return dj.adasync(
        **options,
        scheme=FIXED[scheme](initial_k),
        interval_seconds=interval_seconds,
        loss=lambda metrics: metrics["loss"],
        seed=seed,
    )


def given_batches(losses):
    shape = len(losses), WORKERS
    return {
        "loss": np.broadcast_to(np.float32(losses)[:, None], shape),
        "slot": np.broadcast_to(np.eye(WORKERS, dtype=np.float32), (*shape, WORKERS)),
    }


KEY = jax.random.key(5)
START = jnp.zeros(())


@functools.cache
def scanner(scheme, **options):
    """One program for all seeds: the state has the service times."""
    step = adasync(scheme, seed=0, **options).step
    return jax.jit(lambda state, batches: jax.lax.scan(step, state, batches))


def falling(seed):
    """Losses that fall to a hundredth, with noise, so that some intervals rise."""
    noise = np.random.default_rng(seed).uniform(0.6, 1.4, UPDATES)
    return noise * 0.01 ** (np.arange(UPDATES) / UPDATES)


DRAWS = 1000
# (scheme, seed, draws of service times, versions kept)
CASES = [(scheme, seed, DRAWS, DEPTH) for scheme in SCHEMES for seed in (1, 2, 3)]
OTHER_CASES = [
    # after the last draw, the times begin again
    ("k_sync", 1, 7, DEPTH),
    ("k_batch_async", 1, 7, DEPTH),
    # an older gradient is taken at the oldest version kept
    ("k_async", 1, DRAWS, 2),
]


@pytest.mark.parametrize(
    ("scheme", "seed", "draws", "depth"),
    shortened(
        [*CASES, *OTHER_CASES], *(case for case in CASES if case[1] == 1), *OTHER_CASES
    ),
)
def test_adasync_is_an_event_loop_whose_k_follows_the_loss(scheme, seed, draws, depth):
    losses = falling(seed)
    chooser = Chooser(scheme, WORKERS, 2, 4.0)
    tasks = [itertools.cycle(row[:draws]) for row in service_table(seed)]
    history = serve(scheme, tasks, chooser, lambda t, row: losses[t])
    assert len({k for k, _, _ in history}) >= 3  # otherwise nothing is proven about K

    training = adasync(scheme, seed=seed, draws=draws, max_staleness=depth)
    state = training.init(START, KEY)
    assert state.service.shape == (WORKERS, draws)
    scan = scanner(scheme, max_staleness=depth)
    _, reports = scan(state, given_batches(losses))
    assert_schedule(reports, history, depth)
    # each gradient is taken at its own version
    for t, (k, _, row) in enumerate(history):
        read = np.zeros(WORKERS)
        read[:k] = [max(version, t - depth) / k for _, version in row]
        np.testing.assert_allclose(reports.metrics["read"][t], read, rtol=1e-6)
        assert reports.clipped[t] == sum(t - version > depth for _, version in row)
    assert (reports.clipped.sum() > 0) == (depth < DEPTH)
    late = any(
        version < t for t, (_, _, row) in enumerate(history) for _, version in row
    )
    assert late == (scheme in ("k_async", "k_batch_async"))


FOR_EVER = dict(max_staleness=DEPTH, interval_seconds=math.inf)


STRAGGLERS = [dj.cluster.Slowdown((1, 4), 2.5)]
SERVICES = {
    "pareto": dj.cluster.pareto(1.0, 1.5),
    "lognormal": dj.cluster.lognormal(2.0, 0.05),
    "stragglers": dj.cluster.markov_stragglers(
        dj.cluster.gamma(1.0, 4.0), 8.0, 0.1, 0.3
    ),
}
# (scheme, K, cluster)
FIXED_KS = [(scheme, k, CLUSTER) for scheme in SCHEMES for k in (1, 4, WORKERS)]
OF_SERVICES = [
    ("k_batch_async", 3, dj.cluster.Cluster(WORKERS, service, slowdown=STRAGGLERS))
    for service in SERVICES.values()
]


@pytest.mark.parametrize(
    ("scheme", "k", "cluster"),
    shortened(
        [*FIXED_KS, *OF_SERVICES],
        *(row for row in FIXED_KS if row[1] == 4),
        *OF_SERVICES,
    ),
)
def test_a_fixed_k_does_what_the_cluster_s_protocol_does(scheme, k, cluster):
    # the state has K and the times
    training = adasync(scheme, seed=k, initial_k=k, cluster=cluster, **FOR_EVER)
    batches = given_batches(falling(k))
    _, reports = scanner(scheme, **FOR_EVER)(training.init(START, KEY), batches)
    trace = dj.cluster.simulate(cluster, FIXED[scheme](k), UPDATES, seed=k)
    np.testing.assert_array_equal(reports.k, k)
    seconds = np.cumsum(reports.seconds, dtype=float)
    np.testing.assert_allclose(seconds, trace.seconds, rtol=1e-5)
    np.testing.assert_array_equal(reports.workers[:, :k], trace.workers)
    ages = trace.staleness.mean(axis=1)
    np.testing.assert_allclose(reports.staleness, ages, rtol=1e-6)


def squares(params, batch, key):
    """A noisy least-squares fit; the metric is its loss."""
    noise = (jax.random.key_data(key) % 1024).astype(jnp.float32) / 4096

    def loss(params):
        error = batch["x"] @ params["w"] + params["b"] - batch["y"]
        return jnp.mean(error**2) + jnp.sum(noise * params["w"])

    value, grads = jax.value_and_grad(loss)(params)
    return {"loss": value}, grads


PARAMS = {"w": jnp.array([3.0, -4.0]), "b": jnp.array(2.0, jnp.float32)}
TX = optax.chain(
    optax.sgd(0.05, momentum=0.5), dj.scale_by_staleness(dj.modulation.inverse)
)


@functools.cache
def squares_batches():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(UPDATES, WORKERS, 5, 2)).astype(np.float32)
    noise = rng.normal(size=x.shape[:-1])
    y = (x @ np.array([1.0, 0.5]) + 0.1 * noise).astype(np.float32)
    return {"x": x, "y": y}


one_gradient = jax.jit(squares)


@pytest.mark.parametrize("scheme", ["k_sync", "k_batch_async"])
def test_adasync_trains_as_a_server_that_keeps_every_version(scheme):
    """The loop is closed: K follows the loss that the gradients lead to."""
    batches, versions = squares_batches(), [PARAMS]
    opt_state = TX.init(PARAMS)
    update = jax.jit(TX.update)

    def train(t, row):
        nonlocal opt_state
        results = []
        for slot, (_, version) in enumerate(row):
            key = jax.random.fold_in(jax.random.fold_in(KEY, t), slot)
            batch = pick(batches, (t, slot))
            results.append(one_gradient(versions[version], batch, key))
        mean = jax.tree.map(lambda *x: sum(x) / len(row), *results)
        age = jnp.float32(np.mean([t - version for _, version in row]))
        updates, opt_state = update(mean[1], opt_state, versions[t], staleness=age)
        versions.append(optax.apply_updates(versions[t], updates))
        return mean[0]["loss"]

    chooser = Chooser(scheme, WORKERS, 1, 2.0)
    tasks = [iter(row) for row in service_table(1)]
    history = serve(scheme, tasks, chooser, train)
    assert history[0][0] == 1 < history[-1][0]  # otherwise nothing is proven about K

    options = dict(initial_k=1, interval_seconds=2.0, max_staleness=DEPTH)
    training = adasync(scheme, seed=1, grad_fn=squares, tx=TX, **options)

    @jax.jit
    def scan(state, batches):
        def body(state, batch):
            state, report = training.step(state, batch)
            return state, (state.training.params, report)

        return jax.lax.scan(body, state, batches)

    _, (path, reports) = scan(training.init(PARAMS, KEY), batches)
    assert_schedule(reports, history)
    for t, params in enumerate(versions[1:]):
        # other fusions than a step at a time, sixty times
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
            pick(path, t),
            params,
        )


@pytest.mark.parametrize("scheme", ["k_sync", "k_async"])
def test_a_model_s_state_moves_as_in_replay(scheme):
    def moving(params, batch, key, state):
        output = jnp.sum(params * batch)
        after = {
            "mean": 0.75 * state["mean"] + 0.25 * output,
            "seen": state["seen"] + 1,
        }
        return ({"loss": output, "read": state["mean"]}, after), params - batch

    zero = {"mean": jnp.zeros(()), "seen": jnp.int32(0)}
    batches = np.random.default_rng(0).normal(size=(12, WORKERS, 2)).astype(np.float32)
    tx = optax.sgd(0.25)
    training = adasync(scheme, seed=2, grad_fn=moving, tx=tx, initial_k=3, **FOR_EVER)
    state = training.init(jnp.ones(2), KEY, model_state=zero)
    state, reports = jax.lax.scan(training.step, state, batches)
    protocol = getattr(dj.cluster.protocols, scheme)(3)
    trace = dj.cluster.simulate(CLUSTER, protocol, 12, seed=2)
    replay = dj.replay(trace, moving, tx)
    replayed, expected = replay.run(
        replay.init(jnp.ones(2), KEY, model_state=zero), batches[:, :3]
    )
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, state.training.model_state, replayed.model_state)
    close(reports.metrics["read"], expected.metrics["read"])
    close(state.training.params, replayed.params)
    assert state.training.model_state["seen"] == 12  # one change in each update
    assert trace.max_staleness == 0 or scheme == "k_async"


@functools.cache
def chooser_of(scheme, initial_k):
    """Losses of intervals of one update each -> K of the updates, and of the next."""
    cluster = dj.cluster.Cluster(8, dj.cluster.exponential(1.0))

    def loss_alone(params, batch, key):
        return {"loss": batch}, params

    options = dict(initial_k=initial_k, interval_seconds=1e-6, max_staleness=1)
    training = adasync(scheme, seed=0, cluster=cluster, grad_fn=loss_alone, **options)
    step = jax.jit(training.step)

    def choices(losses):
        state, ks = training.init(START, KEY), []
        for loss in losses:
            state, report = step(state, np.full(8, loss, np.float32))
            ks.append(int(report.k))
        return [*ks, int(state.k)]

    return choices


@schemes
@pytest.mark.parametrize("initial_k", shortened([1, 3, 8], 3))
def test_k_is_the_papers_and_stays_among_the_workers(scheme, initial_k):
    losses = [1.0, 0.5, 0.2, 0.05, 1e-3]
    expected = [rule(scheme, 8, initial_k, 1 / loss) for loss in losses]
    # the K of the first update and the one chosen after it are the initial one
    assert chooser_of(scheme, initial_k)(losses) == [initial_k, *expected]
    assert expected[0] == initial_k


@schemes
def test_k_never_falls_and_a_loss_of_next_to_nothing_waits_for_all(scheme):
    choices, higher = chooser_of(scheme, 3), rule(scheme, 8, 3, 4.0)
    for last in (1e-8, 1e-10, 0.0):
        assert choices([1.0, last, last]) == [3, 3, 8, 8]
    assert 3 < higher < 8
    losses = [1.0, 0.25, 9.0, math.nan, -1.0, math.inf, 0.25]
    assert choices(losses) == [3, 3, *[higher] * 6]


def test_of_a_history_that_was_stripped_only_what_it_holds_is_read():
    """Lost versions are not read as zeros: the oldest one that is kept is read."""
    training = adasync("k_async", seed=1, max_staleness=8)
    batches, step = given_batches(falling(1)), jax.jit(training.step)
    state = training.init(START, KEY)
    for t in range(10):
        state, _ = step(state, pick(batches, t))
    state = dj.resize_history(dj.strip_history(state), training.init(START, KEY))
    state, report = step(state, pick(batches, 10))
    # of all versions the tenth alone is kept; each gradient reads it in its own slot
    slots = np.arange(WORKERS) < report.k
    np.testing.assert_allclose(report.metrics["read"], slots * 10 / report.k, rtol=1e-6)
    assert report.clipped > 0


def training_of(rate, interval_seconds, seed, scheme="k_batch_async"):
    tx = optax.chain(
        optax.sgd(rate, momentum=0.5), dj.scale_by_staleness(dj.modulation.inverse)
    )
    return adasync(
        scheme,
        grad_fn=squares,
        tx=tx,
        seed=seed,
        initial_k=1,
        interval_seconds=interval_seconds,
        max_staleness=DEPTH,
    )


def test_step_sizes_intervals_and_seeds_are_one_program():
    """A grid: each cell has its own step size, interval, service times and key."""
    batches, traced = squares_batches(), []
    rates, intervals = jnp.array([0.02, 0.05, 0.05]), jnp.array([1.0, 3.0, jnp.inf])
    states = [
        training_of(rates[cell], intervals[cell], seed=cell).init(
            PARAMS, jax.random.key(cell)
        )
        for cell in range(3)
    ]

    def step(state, batch, rate, interval):
        return training_of(rate, interval, seed=0).step(state, batch)

    @jax.jit
    def alone(state, rate, interval):
        traced.append(rate)
        return jax.lax.scan(lambda s, x: step(s, x, rate, interval), state, batches)

    axes = dj.ring.vmap_axes(jax.eval_shape(lambda: states[0]))
    together = jax.vmap(step, (axes, None, 0, 0), (axes, 0))

    @jax.jit
    def grid(state):
        def body(state, batch):
            return together(state, batch, rates, intervals)

        return jax.lax.scan(body, state, batches)

    # rings share their clock
    stacked = jax.tree.map(
        lambda axis, *x: x[0] if axis is None else jnp.stack(x),
        axes,
        *states,
        is_leaf=lambda x: x is None,
    )
    state, reports = grid(stacked)
    assert state.training.versions.pushed.shape == ()
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    for cell in range(3):
        single, single_reports = alone(states[cell], rates[cell], intervals[cell])
        jax.tree.map(close, pick(state.training.params, cell), single.training.params)
        np.testing.assert_array_equal(reports.k[:, cell], single_reports.k)
        close(reports.seconds[:, cell], single_reports.seconds)
        close(reports.metrics["loss"][:, cell], single_reports.metrics["loss"])
    assert len(traced) == 1
    assert len({int(k) for k in reports.k[-1]}) > 1  # or nothing is proven about them


@schemes
def test_a_step_returns_the_types_that_init_gave(scheme):
    params = PARAMS | {"narrow": jnp.ones(2, jnp.bfloat16), "nothing": {}}

    def grads_of_all(params, batch, key):
        metrics, grads = squares({name: params[name] for name in PARAMS}, batch, key)
        return metrics, params | grads

    made = functools.partial(
        adasync, scheme, seed=0, grad_fn=grads_of_all, tx=TX, max_staleness=2
    )
    training, batch = made(), pick(squares_batches(), 0)
    shapes = jax.eval_shape(training.init, params, KEY)
    assert types(shapes) == types(training.init(params, KEY))
    state, report = jax.eval_shape(training.step, shapes, batch)
    assert types(state) == types(shapes)
    for dtype in (jnp.float32, jnp.bfloat16):
        traced, _ = jax.eval_shape(
            lambda x, interval: made(interval_seconds=interval).step(x, batch),
            shapes,
            jnp.ones((), dtype),
        )
        assert types(traced) == types(shapes)
    assert (report.k.dtype, report.seconds.dtype) == (jnp.int32, jnp.float32)
    assert (report.staleness.dtype, report.staleness.shape) == (jnp.float32, ())


@pytest.mark.parametrize("scheme", ["k_sync", "k_async"])
def test_a_state_may_be_donated_and_what_the_user_gave_may_not(scheme):
    params, key = jax.tree.map(jnp.copy, PARAMS), jax.random.key(3)
    training = training_of(0.1, 2.0, 0, scheme)
    state = training.init(params, key)
    step = jax.jit(training.step, donate_argnums=0)
    step(state, pick(squares_batches(), 0))
    assert state.service.is_deleted()
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((params, key)))


@pytest.mark.parametrize(("scheme", "kept"), [("k_sync", 0), ("k_async", 4)])
def test_a_state_keeps_as_many_versions_as_may_be_read(scheme, kept):
    big = {"w": jnp.zeros((100, 20))}
    training = adasync(scheme, seed=0, draws=16, max_staleness=3)
    state = jax.eval_shape(training.init, big, KEY)
    versions = state.training.versions
    nbytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(versions))
    assert nbytes == kept * big["w"].nbytes + 8  # two clocks
    bare = state.training._replace(versions=(), params=())
    rest = jax.tree.leaves(state._replace(training=bare))
    assert max(x.size for x in rest) == 16 * WORKERS


def construct(**options):
    defaults = dict(
        cluster=CLUSTER,
        grad_fn=given,
        tx=counting(),
        scheme=protocols.k_sync(2),
        interval_seconds=1.0,
        loss=lambda metrics: metrics["loss"],
        seed=0,
    )
    return dj.adasync(**(defaults | options))


def deep(max_staleness):
    return construct(scheme=protocols.k_async(2), max_staleness=max_staleness)


def one_step(training, of=None, width=WORKERS):
    """A traced step, from the state of the same training or of another one."""
    batch = jax.tree.map(lambda x: x[0, :width], given_batches([1.0]))
    state = jax.eval_shape((of or training).init, START, KEY)
    return jax.eval_shape(training.step, state, batch)


def memoryless(**options):
    return dj.cluster.Cluster(2, dj.cluster.exponential(1.0), **options)


LINK = dj.cluster.Communication(latency_seconds=1.0)
LATER = dj.cluster.Slowdown(1, 2.0, start_seconds=9.0)
ENDLESS = dj.cluster.infinite_bernoulli(1.0, 0.5)

BAD = {
    "an optimizer that pairs late gradients": (
        lambda: construct(
            scheme=protocols.k_async(2), max_staleness=4, tx=optax.scale_by_lbfgs()
        ).init(START, KEY),
        ValueError,
        r"`tx` must not hold optax's scale_by_lbfgs: ",
    ),
    "K beyond P": (
        lambda: construct(scheme=protocols.k_sync(7)),
        ValueError,
        r"`scheme` .* 1 \.\. 6.* got 7",
    ),
    **{
        f"an interval of {bad}": (
            lambda bad=bad: construct(interval_seconds=bad),
            ValueError,
            rf"`interval_seconds` .* got {bad}",
        )
        for bad in (0.0, math.nan)
    },
    "messages that take time": (
        lambda: construct(cluster=memoryless(communication=LINK)),
        ValueError,
        r"`cluster` must be without communication",
    ),
    "speeds that change": (
        lambda: construct(cluster=memoryless(slowdown=[LATER])),
        ValueError,
        r"`cluster` must be .* with constant speeds.* worker 1",
    ),
    "tasks that never end": (
        lambda: construct(cluster=dj.cluster.Cluster(2, ENDLESS)),
        ValueError,
        r"`cluster` must be .*finite times.* worker 0",
    ),
    "a loss that is no scalar": (
        lambda: one_step(construct(loss=lambda metrics: jnp.ones(3))),
        ValueError,
        r"`loss\(metrics\)` must be a scalar, got shape \(3,\)",
    ),
    "a state of a shallower history": (
        lambda: one_step(deep(5), of=deep(4)),
        ValueError,
        r"`state` must keep 6 versions, got one that keeps 5: .*resize_history",
    ),
    "a batch of two for six workers": (
        lambda: one_step(construct(), width=2),
        ValueError,
        r"`batches` must have a leading axis of 6, got shape \(2,\)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_argument_is_named_with_its_value(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()
