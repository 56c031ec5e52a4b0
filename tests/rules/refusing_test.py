"""Rules that refuse, coupled with the loop: the loop makes the staleness they see."""

import functools
import itertools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import delayjax as dj
from delayjax._src.history.ring import Ring
from delayjax.cluster import protocols
from tests.support.cases import shortened
from tests.support.refusing_server import Kardam, Zeno, dropping, serve

WORKERS = 16
MEMORYLESS = dj.cluster.Cluster(WORKERS, dj.cluster.exponential(1.0))
ASYNC = dj.cluster.simulate(MEMORYLESS, protocols.k_async(1), 4000, seed=0)
MOMENTUM = optax.sgd(0.01, momentum=0.5)


def noisy_bowl(x, batch, key):
    return 0.5 * (x @ x), x + jax.random.normal(key, x.shape)


def unnoisy_bowl(x, batch, key):
    return 0.5 * (x @ x), x


def trained(
    trace, tx, *, grad_fn=noisy_bowl, start=(1.0,) * 3, batches=None, **options
):
    """The last state and the reports."""
    training = dj.replay(trace, grad_fn, tx, **options)
    state = training.init(jnp.asarray(start), jax.random.key(0))
    if batches is None:
        batches = jnp.zeros((trace.num_updates, trace.max_gradients))
    return training.run(state, batches)


@pytest.mark.parametrize("bound", [0, 7, 40])
def test_dropping_stale_gradients_is_ringmaster_s_server(bound):
    """The same arrivals, by two ways: the trace refuses, or the optimizer does."""
    state, report = trained(ASYNC, dj.drop_stale(MOMENTUM, bound), grad_fn=unnoisy_bowl)
    used = np.asarray(report.gradients) > 0
    rule = protocols.ringmaster(bound + 1)
    ringmaster = dj.cluster.simulate(MEMORYLESS, rule, int(used.sum()), seed=0)
    np.testing.assert_array_equal(report.ages[used, 0], ringmaster.staleness[:, 0])
    expected, _ = trained(ringmaster, MOMENTUM, grad_fn=unnoisy_bowl)
    np.testing.assert_allclose(state.params, expected.params, rtol=1e-5)
    theirs = jax.tree.leaves(expected.opt_state)
    ours = jax.tree.leaves(state.opt_state.inner_state)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), ours, theirs)
    # of a geometric law of mean P - 1, for memoryless workers
    ages = np.arange(2000)
    pmf = (1 - 1 / WORKERS) ** ages
    kept = dj.cluster.StalenessLaw(pmf / pmf.sum()).filtered_by_bound(bound)
    assert used.mean() == pytest.approx(kept.accepted, abs=0.02)
    mean = report.ages[used].mean()
    assert mean == pytest.approx(kept.law.mean, rel=0.05, abs=0.01)
    assert state.version == used.sum() == ASYNC.num_updates - state.opt_state.dropped


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_an_accepted_gradient_ages_the_others_by_one_and_a_refused_one_nobody(share):
    """So the ages of all arrivals add up to (P - 1) for each gradient accepted.

    Whatever the workers' times: an update ages the P - 1 gradients on their way.
    """

    def coin(gradients, memory, params, *, staleness, **extra_args):
        step, total = memory
        key = jax.random.fold_in(jax.random.key(1), step)
        used = jax.random.uniform(key) < share
        return used, gradients, (step + 1, total + staleness)

    def begin(params):
        return jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)

    times = dj.cluster.Cluster(WORKERS, dj.cluster.pareto(0.5, 2.0))
    trace = dj.cluster.simulate(times, protocols.k_async(1), 2000, seed=1)
    state, report = trained(trace, dj.refusing(MOMENTUM, coin, begin=begin))
    used = np.asarray(report.gradients).sum()
    assert used / trace.num_updates == pytest.approx(share, abs=0.04)
    # of gradients still on their way at the end, at most P - 1, the ages are not summed
    missing = (WORKERS - 1) * int(used) - int(state.opt_state.memory[1])
    newest = trace.num_updates - np.array(
        [trace.update[trace.worker == w].max(initial=-1) for w in range(WORKERS)]
    )
    assert 0 <= missing <= newest.sum()


def refuse_all(gradients, memory, params, **extra_args):
    return jnp.zeros((), bool), gradients, memory


def test_a_rule_in_a_rule_says_what_both_say():
    tx = dj.refusing(dj.drop_stale(MOMENTUM, 3), lambda g, m, p, **_: (g[0] > 0, g, m))
    state = tx.init(jnp.ones(1))
    for gradient, age, applied in [(1, 0, 1), (1, 4, 0), (-1, 0, 0), (-1, 4, 0)]:
        before = state
        updates, state = tx.update(jnp.full(1, 1.0 * gradient), state, staleness=age)
        assert bool(state.applied) == bool(applied) == bool(updates.any())
        moved = optax.tree.get(state, "trace") != optax.tree.get(before, "trace")
        assert bool(moved) == bool(applied)
    assert (state.dropped, state.inner_state.dropped) == (2, 1)


class MovingMeanState(NamedTuple):
    mean: Any
    inner_state: Any


def in_moving_mean(inner, kind=MovingMeanState):
    """A wrapper of a user's, who feeds `inner` a moving mean of the gradients."""

    def init(params):
        return kind(optax.tree.zeros_like(params), inner.init(params))

    def update(updates, state, params=None, **extra_args):
        mean = jax.tree.map(lambda m, g: (m + g) / 2, state.mean, updates)
        updates, inner_state = inner.update(
            mean, state.inner_state, params, **extra_args
        )
        return updates, kind(mean, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


@dj.extend.register_producer
class WaitingState(NamedTuple):
    mean: Any  # the gradients that wait for the rule
    inner_state: Any


class CallState(NamedTuple):
    inner_state: Any  # and no array


def in_a_call(inner):
    def update(updates, state, params=None, **extra_args):
        updates, state = inner.update(updates, state[0], params, **extra_args)
        return updates, CallState(state)

    return optax.GradientTransformationExtraArgs(
        lambda params: CallState(inner.init(params)), update
    )


LAW = dj.scale_by_staleness(dj.modulation.inverse)
RULE = dj.drop_stale(optax.identity(), 3)
MISPLACED = {
    "momentum behind": optax.chain(RULE, MOMENTUM),
    "weight decay behind": optax.chain(RULE, optax.add_decayed_weights(0.1)),
    "momentum before": optax.chain(optax.trace(0.5), dj.drop_stale(LAW, 3)),
    "in a chain of a chain": optax.chain(optax.chain(RULE, optax.trace(0.5)), LAW),
    "two, one beside the other": optax.chain(RULE, dj.drop_stale(MOMENTUM, 3)),
    "in a named chain": optax.named_chain(("rule", RULE), ("optimizer", MOMENTUM)),
    "last in a named chain": optax.named_chain(
        ("momentum", optax.trace(0.5)), ("rule", RULE)
    ),
    "with a schedule on the fly": optax.inject_hyperparams(
        lambda rate: dj.drop_stale(optax.sgd(rate), 3)
    )(optax.linear_schedule(0.1, 0.0, 9)),
    "in a chain on the fly": optax.inject_hyperparams(
        lambda rate: optax.named_chain(("rule", RULE), ("sgd", optax.sgd(rate, 0.5)))
    )(0.1),
    "in schedule_free": optax.contrib.schedule_free(RULE, 0.1),
    "in mechanize": optax.contrib.mechanize(RULE),
    "in a wrapper of the user's": in_moving_mean(RULE),
    "in delayed": dj.delayed(optax.named_chain(("rule", RULE), ("sgd", MOMENTUM)), 1),
    "beside frozen parameters": optax.partition(
        {"a": optax.set_to_zero(), "b": dj.drop_stale(MOMENTUM, 3)}, lambda params: "b"
    ),
    "beside another part": optax.partition(
        {"a": dj.drop_stale(MOMENTUM, 3), "b": MOMENTUM}, lambda params: "a"
    ),
}
WRAPPERS = {
    "tx": lambda tx: trained(ASYNC, tx),
    "each": lambda tx: trained(ASYNC, MOMENTUM, each=tx),
    "delayed": lambda tx: dj.delayed(tx, 2).init(jnp.ones(3)),
    "delivered": lambda tx: dj.delivered(tx, 2).init(jnp.ones(3)),
    "inject_staleness": lambda tx: dj.inject_staleness(tx).init(jnp.ones(3)),
}


@pytest.mark.parametrize(
    ("name", "wrapper"),
    shortened(
        itertools.product(MISPLACED, WRAPPERS),
        *((name, "delayed") for name in MISPLACED),
        *itertools.product(
            ("momentum behind", "momentum before", "in delayed"), WRAPPERS
        ),
    ),
)
def test_a_rule_that_does_not_have_the_whole_optimizer_says_so(name, wrapper):
    if (name, wrapper) == ("momentum before", "each"):
        WRAPPERS[wrapper](MISPLACED[name])  # its state goes through all gradients
        return
    argument = wrapper if wrapper in ("tx", "each") else "inner"
    argument = "inner" if name == "in delayed" else argument
    message = rf"`{argument}` must have its whole optimizer .* drop_stale\(optax.chain"
    with pytest.raises(ValueError, match=message):
        WRAPPERS[wrapper](MISPLACED[name])


@pytest.mark.parametrize("wrap", [lambda tx: optax.MultiSteps(tx, 4)])
def test_a_wrapper_that_does_not_ask_at_every_step_is_refused(wrap):
    with pytest.raises(
        ValueError, match=r"`tx` .* a MultiStepsState: put the rule out"
    ):
        trained(ASYNC, wrap(dj.drop_stale(MOMENTUM, 3)))


PLACED = {
    "alone": dj.drop_stale(MOMENTUM, 3),
    "behind what has no state": optax.chain(
        optax.clip(1.0), dj.drop_stale(MOMENTUM, 3)
    ),
    "with a rate on the fly": optax.inject_hyperparams(
        lambda rate: dj.drop_stale(optax.sgd(rate), 3)
    )(0.1),
    "masked": optax.masked(dj.drop_stale(MOMENTUM, 3), True),
    "in a wrapper without arrays": in_a_call(dj.drop_stale(MOMENTUM, 3)),
    "in a producer of the user's": in_moving_mean(
        dj.drop_stale(MOMENTUM, 3), WaitingState
    ),
    "in a named chain": optax.named_chain(
        ("clip", optax.clip(1.0)), ("rule", dj.drop_stale(MOMENTUM, 3))
    ),
}


@pytest.mark.parametrize("name", PLACED)
def test_a_rule_in_its_place_is_heard(name):
    _, report = trained(ASYNC, PLACED[name])
    used = np.asarray(report.gradients) > 0
    assert 0.1 < used.mean() < 0.9
    assert report.ages[used].max() == 3 and (report.ages[~used] == -1).all()


def test_a_refused_gradient_in_each_is_in_no_sum_and_no_divisor():
    """Four gradients 1, 2, 3, 4 an update, of which the even are refused: mean 2."""
    hard = dj.cluster.Cluster(4, dj.cluster.constant(1.0))
    trace = dj.cluster.simulate(hard, protocols.hardsync(), 3, seed=0)

    def itself(x, batch, key):
        return {}, batch + 0 * x

    def odd(g, memory, params, **extra_args):
        return g % 2 == 1, g, memory

    for chunk in (1, 3, None):
        training = dj.replay(
            trace,
            itself,
            optax.sgd(1.0),
            each=dj.refusing(optax.identity(), odd),
            chunk=chunk,
        )
        state = training.init(jnp.zeros(()), jax.random.key(0))
        batches = jnp.tile(jnp.arange(1.0, 5.0), (3, 1))
        state, report = training.run(state, batches)
        assert state.params == -3 * (1 + 3) / 2
        np.testing.assert_array_equal(report.gradients, [2, 2, 2])
        np.testing.assert_array_equal(report.ages, [[0, -1, 0, -1]] * 3)


def test_adasync_hears_a_rule():
    def one(tx):
        training = dj.adasync(
            MEMORYLESS,
            noisy_bowl,
            tx,
            scheme=protocols.k_async(1),
            interval_seconds=np.inf,
            loss=lambda loss: loss,
            seed=0,
            max_staleness=200,
        )
        state = training.init(jnp.ones(3), jax.random.key(0))
        return jax.lax.scan(training.step, state, jnp.zeros((500, WORKERS)))

    state, report = one(dj.drop_stale(MOMENTUM, 7))
    accepted = 500 - int(state.training.opt_state.dropped)
    assert state.training.version == accepted
    assert 0.4 < accepted / 500 < 0.75 and report.staleness.max() == 7
    _, report = one(dj.refusing(MOMENTUM, refuse_all))
    assert not report.staleness.any()


TEN = 10
LIARS = (2, 5, 8)
CURVATURE = np.linspace(0.2, 1.0, 8)
START = np.linspace(-1.0, 1.0, 8)
ZENO = {"learning_rate": 0.05, "rho": 0.01, "eps": 0.0, "refresh_every": 7}
DAMPED = dj.scale_by_staleness(dj.modulation.exponential(0.2))
SERVICES = {
    "equal": dj.cluster.constant(1.0),
    "memoryless": dj.cluster.exponential(1.0),
}
# name: (the rule around an optimizer, the NumPy rule, damping)
SERVERS = {
    "drop_stale": (lambda tx: dj.drop_stale(tx, 4), lambda: dropping(4), 0.0),
    "kardam": (
        lambda tx: dj.kardam(tx, workers=TEN, attackers=3),
        lambda: Kardam(TEN, 3),
        0.0,
    ),
    "kardam, damped": (
        lambda tx: dj.kardam(optax.chain(tx, DAMPED), workers=TEN, attackers=3),
        lambda: Kardam(TEN, 3),
        0.2,
    ),
    "zeno_plus_plus": (
        lambda tx: dj.zeno_plus_plus(tx, lambda x: CURVATURE * x, **ZENO),
        lambda: Zeno(lambda x: CURVATURE * x, **ZENO),
        0.0,
    ),
}


@pytest.mark.parametrize("times", SERVICES)
@pytest.mark.parametrize("name", SERVERS)
def test_a_rule_in_replay_is_a_numpy_server(name, times):
    """Nobody presets a staleness: both loops make it from who arrives when."""
    arrivals, noise = 600, np.random.default_rng(3).normal(size=(600, 8))
    ten = dj.cluster.Cluster(TEN, SERVICES[times])
    trace = dj.cluster.simulate(ten, protocols.k_async(1), arrivals, seed=3)
    wrap, rule, damping = SERVERS[name]
    liars = () if name == "drop_stale" else LIARS

    def gradient_of(t, worker, x):
        g = CURVATURE * x + 0.3 * noise[t]
        return -10.0 * g if worker in liars else g

    theirs = serve(
        *(trace, gradient_of, rule(), START),
        **{"learning_rate": 0.05, "momentum": 0.5, "damping": damping},
    )
    with jax.enable_x64(True):

        def bowl(x, batch, key):
            return 0.5 * (CURVATURE * x * x).sum(), CURVATURE * x + 0.3 * batch

        state, report = trained(
            trace,
            wrap(optax.sgd(0.05, momentum=0.5)),
            grad_fn=bowl,
            start=START,
            batches=noise[:, None],
            each=dj.attack(optax.scale(-10.0), attackers=liars),
        )
    ages = np.where(theirs.accepted, theirs.staleness, -1)
    np.testing.assert_array_equal(report.ages[:, 0], ages)
    np.testing.assert_allclose(state.params, theirs.params[-1], rtol=1e-5, atol=1e-6)
    shares = [theirs.accepted[trace.worker == w].mean() for w in range(TEN)]
    if name == "drop_stale":  # it looks at no gradient
        assert 0.4 < theirs.accepted.mean() < 0.7
    else:
        assert max(shares[w] for w in LIARS) < min(np.delete(shares, LIARS))


def small(gradients, memory, params, **extra_args):
    return optax.tree.norm(gradients) < 100.0, gradients, memory


def spiky(step):
    """Gradients of a step; of steps 1, 5, 6 and 11 a spike."""
    size = 1e6 if step in (1, 5, 6, 11) else 1.0
    draw = np.random.default_rng(step).normal
    return {"w": jnp.asarray(size * draw(size=3)), "b": jnp.asarray(size * draw())}


SPIKY = {"w": jnp.ones(3), "b": jnp.ones(())}
HISTORIES = {
    "fresh": dict(delay=3),
    "skip": dict(delay=3, warmup="skip"),
    "zeros": dict(delay=3, warmup="zeros"),
    "parameters": dict(delay=3, keep_params=True),
    "random": dict(
        delay=dj.delays.uniform(jax.random.key(0), 0, 4), max_delay=4, keep_params=True
    ),
    "leaf by leaf": dict(delay={"w": 3, "b": 1}),
    "in bfloat16": dict(delay=3, history=dj.ring.cast(jnp.bfloat16)),
    "no history": dict(delay=0),
    "frozen": dict(delay=2, frozen={"w": False, "b": True}),
}
ADAM = optax.adam(0.1)
WHERE = {
    "the optimizer": lambda late: late(ADAM),
    "a chain": lambda late: optax.chain(optax.clip(1.0), late(ADAM)),
    "a part": lambda late: optax.partition(
        {"a": late(ADAM), "b": optax.sgd(0.1, 0.9)}, {"w": "a", "b": "b"}
    ),
    "a delay in a delay": lambda late: dj.delayed(late(ADAM), 1, keep_params=True),
    "a delay that skips": lambda late: dj.delayed(
        late(ADAM), 2, keep_params=True, warmup="skip"
    ),
    "a rule in the rule": lambda late: dj.refusing(late(ADAM), small),
    "finite alone": lambda late: optax.apply_if_finite(late(ADAM), 3),
}


def read_of(state):
    """A state with the items that the next step can read in place of histories."""

    def items(node):
        if not isinstance(node, Ring):
            return node
        step = node.pushed
        return step, [
            slots[(step - 1 - age) % len(slots)]
            for slots in jax.tree.leaves(node.slots)
            for age in range(len(slots) - 1)
        ]

    return jax.tree.map(items, state, is_leaf=lambda node: isinstance(node, Ring))


@pytest.mark.parametrize(
    "where", shortened(WHERE, "the optimizer", "a part", "a delay in a delay")
)
@pytest.mark.parametrize(
    "name", shortened(HISTORIES, "fresh", "random", "leaf by leaf", "in bfloat16")
)
def test_a_refused_gradient_never_enters_a_history(name, where):
    """Fourteen steps with four spikes are the ten without them, compiled and donated.

    Bit for bit: updates, optimizer, staleness, and the history at each age that the
    next step can read.
    """
    tx = dj.refusing(WHERE[where](lambda inner: late_by(inner, name)), small)
    step = jax.jit(tx.update, donate_argnums=1)
    state, expected = tx.init(SPIKY), tx.init(SPIKY)
    for t in range(14):
        updates, state = step(spiky(t), state, SPIKY)
        if state.applied:
            wanted, expected = step(spiky(t), expected, SPIKY)
        else:
            wanted = optax.tree.zeros_like(SPIKY)
        chex.assert_trees_all_equal(updates, wanted)
        both = map(read_of, (state.inner_state, expected.inner_state))
        chex.assert_trees_all_equal(*both)
    assert state.dropped == 4


def late_by(inner, name):
    options = dict(HISTORIES[name])
    return dj.delayed(inner, options.pop("delay"), **options)


@pytest.mark.parametrize("spike", [1, 4, 9])
@pytest.mark.parametrize("delay", [3, {"w": 3, "b": 1}])
def test_a_history_that_refused_is_made_deeper_without_the_refused_gradient(
    spike, delay
):
    """Each gradient that is used is of the step that its staleness says."""
    deeper = jax.tree.map(lambda tau: tau + 3, delay)
    old, new = (dj.delayed(optax.sgd(1.0), tau) for tau in (delay, deeper))
    rule = dj.refusing(old, small)
    state = rule.init(SPIKY)
    for t in range(spike):
        _, state = rule.update(jax.tree.map(lambda x, t=t: x * t, SPIKY), state)
    _, state = rule.update(jax.tree.map(lambda x: x * 1e6, SPIKY), state)
    assert not state.applied
    state = dj.resize_history(state.inner_state, new.init(SPIKY))
    for t in range(spike, spike + 9):
        update, state = new.update(jax.tree.map(lambda x, t=t: x * t, SPIKY), state)
        ages = dj.staleness(state)
        ages = ages if isinstance(ages, dict) else dict.fromkeys(SPIKY, ages)
        for leaf in SPIKY:
            np.testing.assert_array_equal(update[leaf], -(t - ages[leaf]) * SPIKY[leaf])
    assert jax.tree.all(jax.tree.map(jnp.array_equal, dj.staleness(state), deeper))


def test_a_wrapper_that_updates_twice_loses_items_and_never_gains_one():
    """It pushes two gradients in a step: both are taken back."""

    def twice(inner):
        def update(updates, state, params=None):
            _, state = inner.update(updates, state, params)
            return inner.update(updates, state, params)

        return optax.GradientTransformation(inner.init, update)

    tx = dj.refusing(twice(dj.delayed(optax.sgd(1.0), 3)), small)
    state = tx.init(jnp.zeros(()))
    for gradient in (1.0, 2.0, 3.0, 1e6, 4.0, 5.0, 6.0):
        update, state = tx.update(jnp.asarray(gradient), state)
        assert 0 <= -update <= gradient and update > -7.0


@pytest.mark.parametrize("where", ["vmap", "shard_map"])
def test_each_worker_refuses_gradients_of_its_own(where):
    """Two of four workers have a spike at step 2, and go on as if it had not been."""
    tx = dj.refusing(dj.delayed(optax.sgd(1.0), 2), small, axis_name="workers")
    alone = dj.delayed(optax.sgd(1.0), 2)

    def step(state, gradient):
        x, opt_state = state
        updates, opt_state = tx.update(gradient, opt_state, x)
        return optax.apply_updates(x, updates), opt_state

    def run(x, gradients):
        x = dj.workers.vary(x)
        return jax.lax.scan(
            lambda state, g: (step(state, g), None), (x, tx.init(x)), gradients
        )[0][0]

    gradients = jnp.arange(1.0, 25.0).reshape(4, 6).at[:2, 2].set(1e6)
    if where == "vmap":
        got = jax.vmap(run, axis_name="workers")(jnp.zeros(4), gradients)
    else:
        mesh = jax.make_mesh((4,), ("workers",), axis_types=(AxisType.Auto,))
        shard = jax.shard_map(
            lambda x, g: run(x[0], g[0])[None],
            mesh=mesh,
            in_specs=jax.P("workers"),
            out_specs=jax.P("workers"),
        )
        got = jax.jit(shard)(jnp.zeros(4), gradients)
    for worker in range(4):
        x, state = jnp.zeros(()), alone.init(jnp.zeros(()))
        for gradient in gradients[worker]:
            if gradient < 100.0:
                update, state = alone.update(gradient, state, x)
                x += update
        assert got[worker] == x


# drop_stale


def dropping_momentum(gradients, staleness, bound, learning_rate, momentum):
    """Momentum that a dropped gradient doesn't reach: updates, velocities, drops."""
    velocity, dropped = 0.0, 0
    updates, velocities, drops = [], [], []
    for g, tau in zip(gradients, staleness, strict=True):
        if tau > bound:
            dropped += 1
            updates.append(0.0)
        else:
            velocity = momentum * velocity + g
            updates.append(-learning_rate * velocity)
        velocities.append(velocity)
        drops.append(dropped)
    return updates, velocities, drops


@pytest.mark.parametrize("bound", [0, 2, 6])
def test_refused_gradients_reach_neither_parameters_nor_momentum(bound):
    steps = 16
    staleness = [min(t, (5 * t * t + t) % 7) for t in range(steps)]
    fresh = np.random.default_rng(1).integers(-9, 10, steps)
    tx = dj.delayed(
        dj.drop_stale(optax.sgd(0.25, momentum=0.5), bound),
        dj.delays.from_trace(staleness),
        max_delay=6,
    )

    def step(state, g):
        update, state = tx.update(g, state)
        velocity = optax.tree.get(state, "trace")
        return state, (update, velocity, state.inner_state.dropped)

    _, ours = jax.lax.scan(step, tx.init(jnp.zeros(())), jnp.float32(fresh))
    stale = [float(fresh[t - tau]) for t, tau in enumerate(staleness)]
    theirs = dropping_momentum(stale, staleness, bound, 0.25, 0.5)
    # small integers and halves: float32 holds every number exactly
    np.testing.assert_array_equal(ours, theirs)
    assert theirs[2][-1] == sum(tau > bound for tau in staleness)


def test_a_refused_nan_leaves_every_bit_of_the_inner_state():
    params = {"w": jnp.array([0.3, -1.7]), "b": jnp.ones((), jnp.bfloat16)}
    tx = dj.drop_stale(optax.adam(0.1), 3)
    _, before = tx.update(params, tx.init(params), params, staleness=3)
    nans = jax.tree.map(lambda x: x * jnp.nan, params)
    updates, after = tx.update(nans, before, params, staleness=4)
    jax.tree.map(np.testing.assert_array_equal, after.inner_state, before.inner_state)
    assert all(not leaf.any() for leaf in jax.tree.leaves(updates))
    assert (before.dropped, after.dropped) == (0, 1)
