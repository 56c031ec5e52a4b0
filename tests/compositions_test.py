import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import delayjax as dj

PARAMS = {"w": jnp.array([1.0, -2.0, 3.0]), "b": jnp.array(0.5)}
DELAY, STEPS = 2, 7


def gradient(params, step):
    """Of a noisy bowl; each leaf's depends on that leaf alone."""
    rng = np.random.default_rng(step)
    return jax.tree.map(
        lambda p: p + jnp.asarray(rng.normal(size=p.shape), p.dtype), params
    )


def run(tx, *, gradient=gradient, tell=lambda state, step: None):
    """The parameters after each step of a plain loop; `tell` sets what is injected."""
    params, state, path = PARAMS, tx.init(PARAMS), []
    for step in range(STEPS):
        tell(state, step)
        updates, state = tx.update(gradient(params, step), state, params)
        params = optax.apply_updates(params, updates)
        path.append(params)
    return path


def by_hand(inner, delay, params=PARAMS, *, gradient=gradient):
    """The same, with lists in place of `delayed`; `delay` is a function of the step."""
    inner = optax.with_extra_args_support(inner)
    state, gradients, path = inner.init(params), [], [params]
    for step in range(STEPS):
        gradients.append(gradient(params, step))
        tau = min(delay(step), step)
        updates, state = inner.update(
            gradients[step - tau],
            state,
            params,
            staleness=jnp.int32(tau),
            stale_params=path[step - tau],
        )
        params = optax.apply_updates(params, updates)
        path.append(params)
    return path[1:]


def leaf(path, name):
    return [params[name] for params in path]


def late(step):
    return DELAY


def now(step):
    return 0


def compiled(tx):
    return tx._replace(update=jax.jit(tx.update))


def assert_same(got, expected):
    """Bit for bit: both sides run eagerly, one operation after the other."""
    chex.assert_trees_all_equal(got, expected, strict=True)


MODULATED = optax.chain(
    optax.clip_by_global_norm(1.0),
    dj.compensate_delay(0.5, adaptive=True),
    optax.adam(0.1),
    dj.scale_by_staleness(dj.modulation.inverse),
)


LAW = optax.chain(optax.adam(0.1), dj.scale_by_staleness(dj.modulation.inverse))


def test_chain_inside_is_told_staleness_and_snapshot():
    tx = dj.delayed(MODULATED, DELAY, keep_params=True)
    assert_same(run(tx), by_hand(MODULATED, late))


def test_chain_around_acts_on_fresh_gradients_and_stale_updates():
    tx = optax.chain(
        optax.clip(0.5), dj.delayed(optax.adam(0.1), DELAY), optax.scale(0.5)
    )
    # clipping knows no state, so that it may as well come after the delay
    inner = optax.chain(optax.clip(0.5), optax.adam(0.1), optax.scale(0.5))
    assert_same(run(tx), by_hand(inner, late))


def test_masked_outside_delays_the_masked_part_alone():
    tx = optax.chain(
        optax.masked(dj.delayed(optax.trace(0.9), DELAY), {"w": True, "b": False}),
        optax.scale(-0.1),
    )
    path = run(tx)
    trace = optax.chain(optax.trace(0.9), optax.scale(-0.1))
    assert_same(leaf(path, "w"), leaf(by_hand(trace, late), "w"))
    assert_same(leaf(path, "b"), leaf(by_hand(optax.scale(-0.1), now), "b"))


def test_masked_inside_optimizes_the_masked_part_and_delays_all():
    inner = optax.chain(
        optax.masked(optax.trace(0.9), {"w": True, "b": False}), optax.scale(-0.1)
    )
    path = run(dj.delayed(inner, DELAY))
    trace = optax.chain(optax.trace(0.9), optax.scale(-0.1))
    assert_same(leaf(path, "w"), leaf(by_hand(trace, late), "w"))
    assert_same(leaf(path, "b"), leaf(by_hand(optax.scale(-0.1), late), "b"))


LABELS = {"w": "late", "b": "other"}


def test_partition_outside_delays_each_part_on_its_own():
    tx = optax.partition(
        {
            "late": dj.delayed(MODULATED, DELAY, keep_params=True),
            "other": dj.delayed(optax.sgd(0.1), 1),
        },
        LABELS,
    )
    path = run(tx)
    vector = by_hand(MODULATED, late, {"w": PARAMS["w"]}, gradient=part("w"))
    assert_same(leaf(path, "w"), leaf(vector, "w"))
    assert_same(leaf(path, "b"), leaf(by_hand(optax.sgd(0.1), lambda step: 1), "b"))


def part(name):
    """The gradient of one leaf, with the noise it has among the others."""
    return lambda params, step: {name: gradient({**PARAMS, **params}, step)[name]}


@pytest.mark.parametrize("masks_extra_args", [False, True])
@pytest.mark.parametrize(
    ("rule", "delay", "keep_params"),
    [(MODULATED, DELAY, True), (LAW, {"w": 3, "b": 1}, False)],
    ids=["snapshots", "a delay a leaf"],
)
def test_partition_inside_hands_each_part_its_own(
    rule, delay, keep_params, masks_extra_args
):
    inner = optax.partition(
        {"late": rule, "other": optax.sgd(0.1)},
        LABELS,
        mask_compatible_extra_args=masks_extra_args,
    )
    path = run(dj.delayed(inner, delay, keep_params=keep_params))
    ages = delay if isinstance(delay, dict) else {"w": delay, "b": delay}
    vector = by_hand(
        rule, lambda step: ages["w"], {"w": PARAMS["w"]}, gradient=part("w")
    )
    assert_same(leaf(path, "w"), leaf(vector, "w"))
    scalar = by_hand(optax.sgd(0.1), lambda step: ages["b"])
    assert_same(leaf(path, "b"), leaf(scalar, "b"))


def test_a_gradient_that_is_not_finite_is_refused_when_it_arrives():
    def broken(params, step):
        grads = gradient(params, step)
        return grads if step != 2 else jax.tree.map(lambda g: g * jnp.nan, grads)

    inner = optax.apply_if_finite(optax.adam(0.1), 5)
    path = run(compiled(dj.delayed(inner, DELAY)), gradient=broken)
    expected = by_hand(compiled(inner), late, gradient=broken)
    # two programs: XLA may fuse the read of a history with the optimizer
    chex.assert_trees_all_close(path, expected, rtol=1e-5, atol=1e-6)
    arrival = 2 + DELAY
    assert_same(path[arrival], path[arrival - 1])
    assert np.isfinite(path[-1]["w"]).all()


@pytest.mark.parametrize(
    "accumulate",
    [
        lambda inner: optax.MultiSteps(inner, 3),
        lambda inner: optax.MultiSteps(inner, 3).gradient_transformation(),
    ],
    ids=["MultiSteps", "gradient_transformation"],
)
def test_accumulation_inside_collects_late_gradients(accumulate):
    path = run(compiled(dj.delayed(accumulate(optax.sgd(0.1)), DELAY)))
    params, late_gradients = PARAMS, []
    before = [PARAMS, *path]
    for step in range(STEPS):
        tau = min(DELAY, step)
        late_gradients.append(gradient(before[step - tau], step - tau))
        if len(late_gradients) == 3:
            params = jax.tree.map(
                lambda p, *g: p - 0.1 * sum(g) / 3, params, *late_gradients
            )
            late_gradients = []
        chex.assert_trees_all_close(path[step], params, rtol=1e-6)


# inject_hyperparams traces numbers: what must stay static is `max_delay`
INJECTED = optax.inject_hyperparams(dj.delayed, static_args="max_delay")


def test_an_injected_delay_changes_on_the_fly():
    asked = jnp.array([1, 1, 3, 0, 4, 4, 2])

    def tell(state, step):
        state.hyperparams["delay"] = asked[step]

    path = run(INJECTED(LAW, delay=1, max_delay=4), tell=tell)
    # inject_hyperparams compiles what it wraps: fused, so equal to rounding
    expected = by_hand(LAW, lambda step: int(asked[step]))
    chex.assert_trees_all_close(path, expected, rtol=1e-5)


def test_an_injected_delay_may_be_a_schedule():
    schedule = optax.linear_schedule(0, 4, 6)
    others = {"warmup": "fresh", "history": dj.ring.cast(jnp.float32)}
    path = run(INJECTED(LAW, delay=schedule, max_delay=4, **others))
    expected = by_hand(LAW, lambda step: 4 * step // 6)
    chex.assert_trees_all_close(path, expected, rtol=1e-5)


def test_an_injected_max_delay_must_be_static():
    tx = optax.inject_hyperparams(dj.delayed)(optax.sgd(0.1), delay=1, max_delay=4)
    with pytest.raises(TypeError, match="`max_delay` must be a static integer"):
        jax.jit(tx.init)(PARAMS)


def test_an_injected_learning_rate_inside_changes_on_the_fly():
    rates = jnp.array([0.1, 0.1, 0.2, 0.4, 0.1, 0.0, 0.3])
    tx = dj.delayed(
        optax.inject_hyperparams(optax.sgd)(learning_rate=0.1, momentum=0.9), DELAY
    )

    def tell(state, step):
        state.inner_state.hyperparams["learning_rate"] = rates[step]

    path = run(tx, tell=tell)
    expected = by_hand(optax.sgd(lambda step: rates[step], momentum=0.9), late)
    # inject_hyperparams compiles what it wraps
    chex.assert_trees_all_close(path, expected, rtol=1e-5)


INPUTS = jnp.asarray(np.random.default_rng(0).normal(size=(8, 3)), jnp.float32)
TARGETS = INPUTS @ jnp.array([[1.0], [-1.0], [2.0]])


def regression(params, step):
    """The gradient of a linear layer's squared error, written out."""
    error = INPUTS @ params["kernel"] + params["bias"][None] - TARGETS
    return {"kernel": 2 * INPUTS.T @ error / 8, "bias": 2 * error.mean(0)}


def test_nnx_trains_by_its_own_optimizer():
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    start = {"kernel": jnp.copy(model.kernel[...]), "bias": jnp.copy(model.bias[...])}
    tx = dj.delayed(MODULATED, DELAY, keep_params=True)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        grads = nnx.grad(lambda m: jnp.mean((m(INPUTS) - TARGETS) ** 2))(model)
        optimizer.update(model, grads)

    path = []
    for _ in range(STEPS):
        step(model, optimizer)
        path.append({"kernel": model.kernel[...], "bias": model.bias[...]})
    expected = by_hand(MODULATED, late, start, gradient=regression)
    # compiled against eager
    chex.assert_trees_all_close(path, expected, rtol=1e-4, atol=1e-6)
    assert dj.staleness(optimizer.opt_state)[...] == DELAY


def stale_loop(ages, inner, capacity=4):
    """A user's loop: the gradient is taken at the parameters of `ages` steps ago."""
    params, state, path = PARAMS, inner.init(PARAMS), []
    history = dj.ring.init(params, capacity)
    for step in range(STEPS):
        history = dj.ring.push(history, params)
        seen = jax.tree.map(lambda age, t=step: jnp.minimum(age, t), ages)
        stale = dj.ring.read(history, seen, params)
        updates, state = inner.update(slope(stale), state, params)
        params = optax.apply_updates(params, updates)
        path.append(params)
    return path


def slope(params, step=None):
    """The gradient of a bowl that couples the two leaves."""
    return jax.grad(lambda p: jnp.sum((p["w"] - p["b"]) ** 2) + p["b"] ** 2)(params)


def test_a_gradient_at_old_parameters_is_a_late_gradient():
    """Where the loss is one at every step, taking it late is handing it on late."""
    inner = optax.adam(0.1)
    path = stale_loop(DELAY, inner)
    assert_same(path, by_hand(inner, late, gradient=slope))
    assert_same(path, run(dj.delayed(inner, DELAY), gradient=slope))


def test_a_gradient_may_mix_versions_of_the_parameters():
    """One gradient at mixed versions, a stage each, is not late gradients of a leaf."""
    inner, ages = optax.sgd(0.1), {"w": 3, "b": 1}
    params, state, versions = PARAMS, inner.init(PARAMS), []
    expected = []
    for step in range(STEPS):
        versions.append(params)
        mixed = {name: versions[step - min(ages[name], step)][name] for name in ages}
        updates, state = inner.update(slope(mixed), state, params)
        params = optax.apply_updates(params, updates)
        expected.append(params)
    path = stale_loop(ages, inner)
    assert_same(path, expected)
    late_leaves = run(dj.delayed(inner, ages), gradient=slope)
    # two steps in, `b` has seen the first move of `w` there and has not here
    assert abs(path[2]["b"] - late_leaves[2]["b"]) > 0.01


@pytest.mark.parametrize("delay", [0, 2, 7])
@pytest.mark.parametrize("jit", [jax.jit, lambda step: step], ids=["compiled", "eager"])
def test_dowg_inside_is_a_list_of_past_gradients_bit_for_bit(delay, jit):
    """Both eagerly, or both compiled: its rate is |x - x_0|, of which a rounding of x
    is a large share at first.
    """

    def path(tx, tau):
        @jit
        def step(gradient, params, state):
            updates, state = tx.update(gradient, state, params)
            return optax.apply_updates(params, updates), state

        params, gradients, path = jnp.linspace(9.0, 11.0, 8), [], []
        state = tx.init(params)
        for t in range(30):
            gradients.append(0.5 * (params - 9.5))
            params, state = step(gradients[max(0, t - tau)], params, state)
            path.append(params)
        return path

    dowg = optax.contrib.dowg()
    delayed = dj.delayed(dowg, delay)
    assert_same(path(delayed, 0), path(dowg, delay))
