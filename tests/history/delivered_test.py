"""`delivered`: every gradient is used exactly once, when it arrives."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import delayjax as dj
from delayjax import stability
from tests.support.compiled import (
    bytes_accessed,
    compile_as_usual,
    lowered,
    temporary,
)
from tests.support.steps import step_with

KEY = jax.random.key(0)
PARAMS = {
    "w": jnp.arange(6, dtype=jnp.float32).reshape(3, 2) / 8,
    "b": jnp.array([0.5, -2.0], jnp.bfloat16),
}
GEOMETRIC = dj.delays.geometric(KEY, 4.0)
MOMENTUM = optax.sgd(0.1, momentum=0.9)


def drawn(seed, *shape):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda p: rng.normal(size=(*shape, *p.shape)).astype(p.dtype), PARAMS
    )


def at(tree, t):
    return jax.tree.map(lambda leaf: leaf[t], tree)


def assert_close(ours, theirs):
    """Equal up to one rounding of a sum, in the type of the leaf."""

    def close(a, b):
        few = 2.0**-7 if a.dtype == jnp.bfloat16 else 1e-6
        a, b = (np.asarray(x, float) for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=few, atol=1e-6)

    jax.tree.map(close, ours, theirs)


def recorder():
    """An optimizer whose state has the arguments of the last call and a counter."""

    def init(params):
        zero = jnp.zeros(())
        extra_args = {"staleness": zero, "value": zero, "stale_params": params}
        return {"gradient": params, "calls": jnp.int32(0), **extra_args}

    def update(updates, state, params=None, **extra_args):
        return updates, {"gradient": updates, "calls": state["calls"] + 1, **extra_args}

    return optax.GradientTransformationExtraArgs(init, update)


class Oracle:
    """`delivered` from its definition: a list of gradients in flight, in float32."""

    def __init__(self, delay, max_delay, idle):
        self.delay, self.max_delay, self.idle = delay, max_delay, idle
        self.step, self.in_flight = 0, []

    def update(self, gradient, age, value, old, today):
        wait = min(max(int(self.delay(self.step)), 0), self.max_delay)
        wide = jax.tree.map(lambda x: np.asarray(x, np.float32), (gradient, old))
        item = wide[0], np.float32(age + wait), np.float32(value), wide[1]
        self.in_flight.append((self.step + wait, item))
        items = [item for due, item in self.in_flight if due == self.step]
        self.in_flight = [one for one in self.in_flight if one[0] != self.step]
        self.step += 1
        if not items:
            zeros = jax.tree.map(lambda g: 0 * np.asarray(g, np.float32), gradient)
            args = (zeros, 0.0, value, today) if self.idle == "zeros" else None
            return 0, args
        total = functools.reduce(lambda a, b: jax.tree.map(np.add, a, b), items)
        k = np.float32(len(items))
        mean_params = jax.tree.map(lambda leaf: leaf / k, total[3])
        return len(items), (total[0], total[1] / k, total[2] / k, mean_params)


DELAYS = {
    "geometric": (GEOMETRIC, 9),
    "uniform": (dj.delays.uniform(KEY, 0, 6), 6),
    "falling": (lambda t: 7.5 - t % 8, 7),  # floored; eight gradients arrive at once
    "negative": (lambda t: t % 5 - 2, 3),
}


@pytest.mark.parametrize(
    ("name", "idle"), [*((name, "hold") for name in DELAYS), ("geometric", "zeros")]
)
def test_a_hundred_steps_are_those_of_a_list(name, idle):
    delay, max_delay = DELAYS[name]
    tx = dj.delivered(
        recorder(), delay, max_delay=max_delay, keep_params=True, idle=idle
    )
    steps = np.arange(100)
    given = {
        "gradient": drawn(1, 100),
        "age": (steps * 7 % 5).astype(np.int32),
        "value": np.cos(steps).astype(np.float32),
        "old": drawn(2, 100),
        "today": drawn(3, 100),
    }

    def step(state, now):
        extra_args = {"staleness": now["age"], "value": now["value"]}
        updates, state = tx.update(
            now["gradient"], state, now["today"], stale_params=now["old"], **extra_args
        )
        return state, (updates, state.arrived, state.staleness, state.inner_state)

    _, seen = jax.jit(lambda given: jax.lax.scan(step, tx.init(PARAMS), given))(given)
    updates, arrived, staleness, inner = jax.tree.map(np.asarray, seen)
    oracle, calls, last = Oracle(delay, max_delay, idle), 0, None
    for t in steps:
        count, args = oracle.update(**at(given, t))
        assert arrived[t] == count
        calls += args is not None
        assert inner["calls"][t] == calls
        wanted = optax.tree.zeros_like(PARAMS) if args is None else args[0]
        assert_close(at(updates, t), wanted)
        assert_close(staleness[t], 0.0 if args is None else args[1])
        last = args or last
        if last is not None:
            numbers = (at(inner[name], t) for name in ("staleness", "value"))
            assert_close(tuple(numbers), last[1:3])
            assert_close(at(inner["stale_params"], t), last[3])


@pytest.mark.parametrize("tau", [0, 3])
def test_a_constant_delay_is_delayed_that_skips_bit_for_bit(tau):
    inner = optax.chain(
        dj.compensate_delay(0.5),
        MOMENTUM,
        dj.scale_by_staleness(dj.modulation.polynomial(0.5)),
    )
    ours = dj.delivered(inner, tau, keep_params=True)
    theirs = dj.delayed(inner, tau, keep_params=True, warmup="skip")
    params, states = PARAMS, (ours.init(PARAMS), theirs.init(PARAMS))
    for t in range(6):
        got, first = ours.update(drawn(t), states[0], params)
        wanted, second = theirs.update(drawn(t), states[1], params)
        chex.assert_trees_all_equal(got, wanted, strict=True)
        chex.assert_trees_all_equal(first.inner_state, second.inner_state, strict=True)
        assert first.arrived == (t >= tau)
        assert first.staleness == (tau if t >= tau else 0)
        params, states = optax.apply_updates(params, got), (first, second)


@functools.cache
def uses(wrap, steps=1500, max_delay=60):
    """How often each gradient is used, with geometric delays of mean 4."""
    tx = wrap(optax.identity(), GEOMETRIC, max_delay=max_delay)

    def step(carry, t):
        state, used = carry
        update, state = tx.update(jax.nn.one_hot(t, steps), state)
        return (state, used + update), getattr(state, "arrived", 0)

    def run():
        state = tx.init(jnp.zeros(steps))
        return jax.lax.scan(step, (state, jnp.zeros(steps)), jnp.arange(steps))

    (_, used), arrived = jax.jit(run)()
    return np.asarray(used)[: steps - max_delay], np.asarray(arrived)


def test_delivery_uses_every_gradient_once_and_lookback_a_third_never():
    used, arrived = uses(dj.delivered)
    np.testing.assert_array_equal(used, 1)
    # the others are in flight: 4 on average, and at most 60
    assert arrived.sum() >= len(arrived) - 60
    assert abs(arrived.mean() - 1) < 0.02
    # P(delay = d) = q^d (1 - q): in about 1 - 1/e of the steps a gradient arrives
    q = 0.8
    chances = (1 - q) * q ** np.arange(60)
    error = 4 / np.sqrt(len(used))  # at least four standard errors of a share
    share = np.prod(1 - chances)
    assert abs((arrived == 0).mean() - share) < error
    looked_back, _ = uses(dj.delayed)
    assert 0.3 < share < 0.36
    assert abs((looked_back == 0).mean() - share) < error
    # a small step has 2 - sum p(d)^2 times the variance, if gradients are white noise
    square = 2 - (chances**2).sum()
    assert abs((looked_back**2).mean() - square) < 4 * error
    assert (used**2).mean() == 1


def test_the_mean_of_many_runs_is_that_of_lookback():
    """x_{t+1} = x_t - a sum_d p(d) x_{t-d}; `Dynamics` has the limit of the step a."""
    law = np.array([0.2, 0.1, 0.3, 0.4])
    training = stability.Dynamics(law)
    step, runs, updates = training.step_limit(), 4096, 20
    assert step < training.step_limit("mean")

    def run(key):
        def delay(t):
            key_t = jax.random.fold_in(key, t)
            return jax.random.choice(key_t, 4, p=jnp.asarray(law))

        tx = dj.delivered(optax.sgd(step), delay, max_delay=3)

        def body(carry, _):
            x, state = carry
            update, state = tx.update(x, state)
            return (x + update, state), x

        return jax.lax.scan(body, (1.0, tx.init(1.0)), None, length=updates)[1]

    paths = np.asarray(jax.jit(jax.vmap(run))(jax.random.split(KEY, runs)))
    wanted = [1.0]
    for t in range(updates - 1):
        mean = sum(p * wanted[t - d] for d, p in enumerate(law) if d <= t)
        wanted.append(wanted[t] - step * mean)
    errors = 5 * paths.std(axis=0) / np.sqrt(runs) + 1e-6
    assert (np.abs(paths.mean(axis=0) - wanted) < errors).all()


def test_narrow_gradients_add_up_in_float32():
    """In bfloat16 a sum of ones would not grow beyond 256."""
    tx = dj.delivered(optax.identity(), lambda t: 299 - t, max_delay=299)
    one = jnp.ones((), jnp.bfloat16)

    def step(state, _):
        update, state = tx.update(one, state)
        return state, update

    state, updates = jax.lax.scan(step, tx.init(one), None, length=300)
    assert updates.dtype == jnp.bfloat16
    assert float(updates[-1]) == 300.0 and not updates[:-1].any()
    assert state.arrived == 300


def test_a_delay_that_is_nan_makes_the_update_nan():
    tx = dj.delivered(optax.sgd(1.0), lambda t: jnp.nan * t, max_delay=3)
    updates, state = tx.update(PARAMS, tx.init(PARAMS))
    assert all(np.isnan(x.astype(float)).all() for x in jax.tree.leaves(updates))
    assert state.arrived == 1


TREE = {"w": jnp.arange(1.0, 4.0), "held": {"a": jnp.ones(3), "b": jnp.arange(3.0)}}
FROZEN = {"w": False, "held": {"a": True, "b": False}}
LABELS = {"w": "train", "held": {"a": "frozen", "b": "train"}}


@pytest.mark.parametrize(
    "frozen", [FROZEN, lambda path, leaf: path == "held/a" and leaf.shape == (3,)]
)
@pytest.mark.parametrize("idle", ["hold", "zeros"])
@pytest.mark.parametrize("keep_params", [False, True])
def test_frozen_leaves_are_as_a_frozen_part_beside_a_delivered_part(
    frozen, idle, keep_params
):
    """The same calendar, updates and arrivals: a norm over all leaves sees zeros."""
    rule = dj.compensate_delay(0.5) if keep_params else optax.identity()
    inner = optax.chain(rule, optax.clip_by_global_norm(1.0), optax.adamw(0.1))
    options = dict(max_delay=3, idle=idle, keep_params=keep_params)
    whole = dj.delivered(inner, lambda t: t % 4, frozen=frozen, **options)
    part = dj.delivered(inner, lambda t: t % 4, **options)
    part = optax.partition({"train": part, "frozen": optax.set_to_zero()}, LABELS)
    params = TREE
    states = [tx.init(params) for tx in (whole, part)]
    for t in range(8):
        # the gradient of the frozen leaf is not finite
        gradients = jax.tree.map(lambda x, t=t: x * jnp.cos(1.0 + t), TREE)
        gradients["held"]["a"] = jnp.full(3, jnp.nan)
        moves = []
        for i, tx in enumerate((whole, part)):
            update, states[i] = tx.update(gradients, states[i], params)
            moves.append(update)
        chex.assert_trees_all_equal(*moves)
        assert jnp.all(moves[0]["held"]["a"] == 0)
        beside = states[1].inner_states["train"].inner_state
        leaves = [jax.tree.leaves(state.in_flight) for state in (states[0], beside)]
        chex.assert_trees_all_equal(*leaves)
        assert states[0].arrived == beside.arrived
        params = optax.apply_updates(params, moves[0])
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(states[0]))


def test_a_frozen_leaf_is_thawed_by_resize_history_and_no_gradient_is_lost():
    held, thawed = (
        dj.delivered(optax.sgd(1.0), 2, frozen=frozen) for frozen in (FROZEN, None)
    )
    state = held.init(TREE)
    for _ in range(2):
        _, state = held.update(TREE, state)
    state, seen = dj.resize_history(state, thawed.init(TREE)), []
    for _ in range(3):
        update, state = thawed.update(TREE, state)
        seen.append(jax.tree.map(lambda x: x[1], update))
    # gradients of the frozen leaf "a" were not kept: zeros arrive for two steps
    assert [float(x["held"]["a"]) for x in seen] == [0.0, 0.0, -1.0]
    assert [float(x["w"]) for x in seen] == [-2.0, -2.0, -2.0]
    back = dj.resize_history(state, held.init(TREE))
    chex.assert_trees_all_equal_shapes_and_dtypes(back, held.init(TREE))


def grid_cell(rate, delay, steps=12):
    tx = dj.delivered(optax.adam(rate), delay, max_delay=5)

    def step(carry, t):
        params, state = carry
        updates, state = tx.update({"w": params["w"] + jnp.cos(t)}, state, params)
        return (optax.apply_updates(params, updates), state), state.arrived

    params = {"w": jnp.ones(3)}
    return jax.lax.scan(step, (params, tx.init(params)), jnp.arange(steps))


def test_a_grid_of_steps_and_delays_is_one_program():
    rates, delays = jnp.array([0.1, 0.01, 0.1]), jnp.array([0, 3, 9])
    one = jax.eval_shape(grid_cell, rates[0], delays[0])[0][1]
    axes = dj.ring.vmap_axes(one)
    assert axes.in_flight.step is None and axes.in_flight.due == 0
    spec = (0, axes), 0
    (params, _), arrived = jax.jit(jax.vmap(grid_cell, out_axes=spec))(rates, delays)
    for i in range(3):
        (alone, _), count = jax.jit(grid_cell)(rates[i], delays[i])
        np.testing.assert_allclose(params["w"][i], alone["w"], rtol=1e-5)
        np.testing.assert_array_equal(arrived[i], count)
        np.testing.assert_array_equal(count, np.arange(12) >= min(delays[i], 5))


def test_a_step_costs_the_same_whatever_the_depth():
    kinds = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
    params = {name: jnp.zeros((100, 200), kind) for name, kind in kinds.items()}

    def program(max_delay):
        tx = dj.delivered(MOMENTUM, GEOMETRIC, max_delay=max_delay, keep_params=True)
        return compile_as_usual(lowered(tx, params))

    shallow, deep = program(4), program(64)
    assert bytes_accessed(deep) <= 1.1 * bytes_accessed(shallow)
    item = sum(x.size * 4 for x in jax.tree.leaves(params))
    assert temporary(deep) - temporary(shallow) < item and temporary(deep) < 4 * item


SLOPES = np.random.default_rng(0).normal(size=(12, 4, 3)).astype(np.float32)
TAU = [0, 1, 3, 2]


LATE = dj.delays.per_worker(TAU)
OF_WORKERS = {
    "own delays": dj.delivered(
        dj.exchange.mean(optax.sgd(0.1)), LATE, max_delay=3, idle="zeros"
    ),
    "own optimizers": dj.delivered(
        optax.adam(0.1),
        dj.delays.uniform(KEY, 0, 3, axis_name="workers"),
        max_delay=3,
    ),
    "one delay": dj.delivered(
        dj.exchange.mean(optax.adam(0.1)), GEOMETRIC, max_delay=3
    ),
}


def step_of(tx):
    """A worker's step; it reports the staleness and the number of arrivals."""

    def step(state, slope):
        x, opt_state = state
        gradient = dj.workers.vary(x) - slope
        updates, opt_state = tx.update(gradient, opt_state, x, value=slope.sum())
        arrival = opt_state.staleness, opt_state.arrived
        arrival = jax.tree.map(lambda leaf: dj.workers.vary(leaf) + 0, arrival)
        return (optax.apply_updates(x, updates), opt_state), arrival

    return step


@pytest.fixture(scope="module")
def ran():
    """{name: (state, reports)} on four devices; the simulation is compared with it."""
    steps = {name: step_of(tx) for name, tx in OF_WORKERS.items()}

    def step(states, slope):
        result = {name: steps[name](states[name], slope) for name in steps}
        return tuple({name: f[i] for name, f in result.items()} for i in range(2))

    x, ends = jnp.ones(3), []
    start = {name: (x, tx.init(x)) for name, tx in OF_WORKERS.items()}
    shared = {name: (name != "own optimizers", False) for name in OF_WORKERS}
    mesh = jax.make_mesh((4,), ("workers",), axis_types=(AxisType.Auto,))
    for workers in (dj.workers.simulate(step, 4), dj.workers.run(step, mesh)):
        held = workers.init(start, SLOPES[0], shared=shared)
        run = jax.jit(lambda s, b, step=workers.step: jax.lax.scan(step, s, b))
        held, arrivals = run(held, SLOPES)
        ends.append(jax.tree.map(np.asarray, (held.state, arrivals)))
    states, arrivals = ends[1]
    result = {name: (states[name], arrivals[name]) for name in OF_WORKERS}
    for name in OF_WORKERS:
        few = 1e-5 if name == "own delays" else 1e-4  # Adam divides by small numbers
        simulated = ends[0][0][name], ends[0][1][name]
        chex.assert_trees_all_close(result[name], simulated, rtol=few, atol=1e-6)
    return result


def test_of_workers_with_delays_of_their_own_each_gradient_arrives_late(ran):
    """The gradient of step t - d arrives at t, with a weight of 1/4 in the mean."""
    path = [np.ones(3)]
    for t in range(12):
        arrivals = [path[t - d] - SLOPES[t - d, p] for p, d in enumerate(TAU) if t >= d]
        path.append(path[t] - 0.1 * sum(arrivals) / 4)
    (x, state), (staleness, arrived) = ran["own delays"]
    np.testing.assert_allclose(x, path[-1], rtol=1e-5)
    mask = np.arange(12)[:, None] >= TAU
    np.testing.assert_array_equal(arrived, mask)
    np.testing.assert_array_equal(staleness, mask * np.array(TAU))
    assert state.in_flight.slots.gradient.shape == (4, 4, 3)


def test_a_worker_that_receives_nothing_keeps_its_own_optimizer(ran):
    (_, state), (_, arrived) = ran["own optimizers"]
    np.testing.assert_array_equal(state.inner_state[0].count, (arrived > 0).sum(0))
    assert (arrived == 0).any() and (arrived > 1).any()


def test_workers_with_one_delay_may_hold_an_optimizer_behind_the_mean(ran):
    (_, state), (_, arrived) = ran["one delay"]
    assert (arrived == arrived[:, :1]).all() and (arrived == 0).any()
    assert state.inner_state[0].count == (arrived[:, 0] > 0).sum()


def test_holding_behind_a_mean_of_workers_with_own_delays_is_refused():
    tx, x = dj.delivered(dj.exchange.mean(MOMENTUM), LATE, max_delay=3), jnp.ones(3)
    workers = dj.workers.simulate(step_of(tx), 4)
    with pytest.raises(ValueError, match=r'`idle` must be "zeros".*got "hold"'):
        workers.init((x, tx.init(x)), SLOPES[0])


def test_simulated_workers_hold_no_second_calendar():
    size, depth = 5000, 32
    tx = dj.delivered(
        dj.exchange.mean(optax.sgd(0.1)), LATE, max_delay=depth, idle="zeros"
    )

    step = step_with(tx, lambda x, batch: dj.workers.vary(x) - batch)
    four, x = dj.workers.simulate(step, 4), jnp.ones(size)
    held = four.init((x, tx.init(x)), jnp.ones((4, 1)))
    run = jax.jit(lambda s, b: jax.lax.scan(four.step, s, b), donate_argnums=0)
    program = compile_as_usual(run.lower(held, jnp.ones((5, 4, 1))))
    items = program.memory_analysis().temp_size_in_bytes / (4 * x.nbytes)
    assert items < 6 < depth


def arrivals_of(tx, state, start, stop):
    """The sums that arrive at the steps start .. stop - 1; gradient t is 2^t."""
    sums = []
    for t in range(start, stop):
        update, state = tx.update(jnp.asarray(2.0**t), state)
        sums.append(float(update))
    return sums, state


def sums_of(delays, stop):
    """Of each step, the sum of 2^s over the gradients s that arrive at it."""
    sums = [0.0] * stop
    for s, d in enumerate(delays):
        if s + d < stop:
            sums[s + d] += 2.0**s
    return sums


@pytest.mark.parametrize("pushes", [5, 8])
@pytest.mark.parametrize("depth", [2, 7])
def test_gradients_in_flight_survive_another_depth(depth, pushes):
    asked = [(4 * t) % 6 for t in range(20)]
    delay = dj.delays.from_trace(asked)
    old, new = (
        dj.delivered(optax.identity(), delay, max_delay=bound) for bound in (4, depth)
    )
    before, state = arrivals_of(old, old.init(jnp.zeros(())), 0, pushes)
    state = dj.resize_history(state, new.init(jnp.zeros(())))
    after, state = arrivals_of(new, state, pushes, 14)
    # a gradient in flight arrives as before, or after `depth` steps if that is sooner
    waits = [min(d, 4) for d in asked[:pushes]]
    waits = [min(s + d, pushes + depth) - s for s, d in enumerate(waits)]
    waits += [min(d, depth) for d in asked[pushes:14]]
    assert before + after == sums_of(waits, 14)
    left = sum(2.0**s for s, d in enumerate(waits) if s + d >= 14)
    due = np.asarray(state.in_flight.due) > 0
    assert np.asarray(state.in_flight.slots.gradient)[due].sum() == left


def test_a_stripped_state_loses_what_was_in_flight_and_keeps_its_step():
    delay = dj.delays.from_trace([3, 3, 0, 1, 2, 0, 1, 2])
    tx = dj.delivered(optax.identity(), delay, max_delay=3)
    _, state = arrivals_of(tx, tx.init(jnp.zeros(())), 0, 2)
    stripped = dj.strip_history(state)
    assert stripped.in_flight.slots is None
    with pytest.raises(
        ValueError, match="`max_delay` is 3, but the history in the state has depth 0:"
    ):
        tx.update(jnp.zeros(()), stripped)
    state = dj.resize_history(stripped, tx.init(jnp.zeros(())))
    sums, _ = arrivals_of(tx, state, 2, 7)
    # the gradients 1 and 2, due at 3 and 4, are lost; step 2 has the third delay, 0
    assert sums == [4.0, 0.0, 8.0, 32.0, 16.0]
