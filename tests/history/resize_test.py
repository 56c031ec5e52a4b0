"""`resize_history`: another depth keeps the items at their ages, and adds none."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import AxisType

import delayjax as dj
from tests.support.cases import shortened
from tests.support.steps import step_with

GRADIENTS = jnp.arange(1.0, 31.0)


LIKE = {"a": jnp.zeros(2), "b": jnp.zeros((), jnp.bfloat16)}


def filled(capacity, pushes):
    ring = dj.ring.init(LIKE, capacity)
    for i in range(1, pushes + 1):
        item = {"a": jnp.full(2, float(i)), "b": jnp.asarray(-i, jnp.bfloat16)}
        ring = dj.ring.push(ring, item)
    return ring


@pytest.mark.parametrize("pushes", shortened([0, 1, 3, 7, 8], 1, 3, 8))
@pytest.mark.parametrize(
    ("before", "after"),
    shortened([(3, 5), (5, 3), (1, 4), (4, 1), (4, 4)], (3, 5), (5, 3)),
)
def test_every_item_that_both_can_hold_keeps_its_age(before, after, pushes):
    ring = dj.resize_history(filled(before, pushes), filled(after, 0))
    assert ring.pushed == pushes
    for age in range(after):
        kept = age < min(before, pushes)
        read = dj.ring.read(ring, age, LIKE)
        np.testing.assert_array_equal(read["a"], (pushes - age) * kept)
        assert read["b"] == -(pushes - age) * kept


@pytest.mark.parametrize("pushes", [1, 4, 9])
def test_first_says_from_where_on_there_are_items(pushes):
    deeper = dj.resize_history(filled(3, pushes), filled(8, 0))
    assert deeper.first == max(0, pushes - 3)
    # a history of less depth keeps as many items as it can hold
    third = dj.resize_history(deeper, filled(2, 0))
    chex.assert_trees_all_equal(
        dj.ring.read(third, 0, LIKE), dj.ring.read(deeper, 0, LIKE)
    )


def used(tx, state, start, stop):
    """The gradients that SGD with rate 1 uses, their staleness, and the state."""
    gradients, ages = [], []
    for gradient in GRADIENTS[start:stop]:
        update, state = tx.update(gradient, state)
        gradients.append(-float(update))
        ages.append(int(dj.staleness(state)))
    return gradients, ages, state


@pytest.mark.parametrize("pushes", shortened([0, 1, 2, 5, 6], 1, 6))
def test_a_delay_that_the_old_history_could_hold_is_untouched(pushes):
    old, new = (dj.delayed(optax.sgd(1.0), 2, max_delay=depth) for depth in (2, 6))
    expected = used(old, old.init(0.0), 0, 20)
    first, ages, state = used(old, old.init(0.0), 0, pushes)
    state = dj.resize_history(state, new.init(0.0))
    rest, later, _ = used(new, state, pushes, 20)
    assert (first + rest, ages + later) == expected[:2]


@pytest.mark.parametrize("warmup", ["fresh", "skip", "zeros"])
@pytest.mark.parametrize("pushes", shortened([1, 3, 9], 1, 9))
def test_a_longer_delay_warms_up_from_what_was_kept(pushes, warmup):
    old = dj.delayed(optax.sgd(1.0), 2, warmup=warmup)
    new = dj.delayed(optax.sgd(1.0), 5, warmup=warmup)
    _, _, state = used(old, old.init(0.0), 0, pushes)
    state = dj.resize_history(state, new.init(0.0))
    gradients, _, _ = used(new, state, pushes, pushes + 8)
    # a history of depth 2 holds three gradients
    oldest = max(0, pushes - 3)
    for t, gradient in enumerate(gradients, start=pushes):
        late = {
            "fresh": max(t - 5, oldest),
            "skip": t - 5 if t - 5 >= oldest else None,
            "zeros": t - 5 if t - 5 >= oldest else None,
        }[warmup]
        assert gradient == (0 if late is None else GRADIENTS[late])


def test_a_delay_of_zero_gets_a_history_and_loses_it_again():
    params = {"a": jnp.zeros(()), "b": jnp.zeros(2)}
    shallow, deep = (
        dj.delayed(optax.sgd(1.0), {"a": 1, "b": d}, max_delay={"a": 1, "b": d})
        for d in (0, 3)
    )
    state = shallow.init(params)
    for i in range(4):
        item = {"a": jnp.asarray(i + 1.0), "b": jnp.full(2, i + 1.0)}
        _, state = shallow.update(item, state)
    deeper = dj.resize_history(state, deep.init(params))
    assert deeper.gradients.first == 4  # nothing was kept of "b"
    updates, deeper = deep.update(jax.tree.map(lambda x: x + 5.0, params), deeper)
    # the gradients of "a" alone are not used: all are fresh
    chex.assert_trees_all_equal(updates, jax.tree.map(lambda x: x - 5.0, params))
    back = dj.resize_history(deeper, shallow.init(params))
    chex.assert_trees_all_equal_shapes_and_dtypes(back, state)


def test_a_stripped_state_goes_on_at_its_step_and_warms_up():
    tx = dj.delayed(
        optax.adam(0.1), dj.delays.from_trace([0, 1, 2, 3] * 5), max_delay=3
    )
    state = tx.init(0.0)
    for gradient in GRADIENTS[:9]:
        _, state = tx.update(gradient, state)
    stripped = dj.strip_history(state)
    assert len(jax.tree.leaves(stripped)) < len(jax.tree.leaves(state))
    back = dj.resize_history(stripped, tx.init(0.0))
    chex.assert_trees_all_equal(back.inner_state, state.inner_state)
    ages = []
    for gradient in GRADIENTS[9:16]:
        _, back = tx.update(gradient, back)
        ages.append(int(dj.staleness(back)))
    delays = [[0, 1, 2, 3][t % 4] for t in range(9, 16)]  # of steps 9, 10, ...
    assert ages == [min(delay, since) for since, delay in enumerate(delays)]


def of_workers(depth):
    """Four workers with different delays in `delivered`, inside of a `delayed`."""
    late = dj.delays.per_worker([0, 1, 3, 2])
    mean = dj.exchange.mean(optax.sgd(0.1))
    tx = dj.delivered(mean, late, max_delay=depth, idle="zeros")
    tx = dj.delayed(tx, 1, max_delay=depth)

    step = step_with(tx, lambda x, slope: dj.workers.vary(x) - slope)
    workers = dj.workers.simulate(step, 4)
    start = jnp.ones(3), tx.init(jnp.ones(3))
    return jax.jit(workers.step), workers.init(start, jnp.zeros((4, 3)))


def test_the_histories_and_calendars_of_workers_are_resized_as_one_s_are():
    slopes = np.random.default_rng(0).normal(size=(7, 4, 3)).astype(np.float32)
    (shallow, state), (deep, like) = of_workers(3), of_workers(6)
    for slope in slopes[:4]:
        state, _ = shallow(state, slope)
    resized = dj.resize_history(state, like)
    assert resized.state[1].gradients.slots.shape == (4, 7, 3)
    for slope in slopes[4:]:
        state, _ = shallow(state, slope)
        resized, _ = deep(resized, slope)
    np.testing.assert_allclose(resized.state[0], state.state[0], rtol=1e-6)


STORAGES = {
    "on the host": dj.ring.on_host(),
    "sharded": dj.ring.sharded(
        "data", mesh=jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    ),
}


@pytest.mark.parametrize("name", STORAGES)
def test_a_history_elsewhere_is_resized_as_any_other(name):
    storage = STORAGES[name]
    items = [jax.tree.map(lambda x, t=t: x + t, LIKE) for t in range(4)]
    ring = storage.init(LIKE, 2)
    for item in items:
        ring = storage.push(ring, item)
    ring = dj.resize_history(ring, storage.init(LIKE, 5))
    for age in range(2):
        chex.assert_trees_all_equal(storage.read(ring, age, LIKE), items[3 - age])
    if name == "on the host":
        kinds = {x.sharding.memory_kind for x in jax.tree.leaves(ring.slots)}
        assert kinds == {"pinned_host"}


NARROW = dj.ring.cast(jnp.bfloat16)


@pytest.mark.parametrize("depths", [(2, 2), (2, 4), (4, 2)])
@pytest.mark.parametrize("histories", [(None, NARROW), (NARROW, None)])
def test_a_history_changes_its_precision_with_its_items(histories, depths):
    """bfloat16 has the gradients 1, 2, 3, and so on exactly."""
    old, new = (
        dj.delayed(optax.sgd(1.0), depth, history=history)
        for depth, history in zip(depths, histories, strict=True)
    )
    params = {"w": jnp.zeros(3)}
    state = old.init(params)
    for t in range(7):
        _, state = old.update({"w": jnp.full(3, 1.0 + t)}, state, params)
    state = dj.resize_history(state, new.init(params))
    assert types(state) == types(new.init(params))
    updates, _ = new.update({"w": jnp.full(3, 8.0)}, state, params)
    # the gradient is as late as both depths allow; the deeper one fills
    late = min(depths[1], depths[0] + 1)
    np.testing.assert_array_equal(updates["w"], -(8.0 - late) * np.ones(3))


def types(tree):
    return jax.tree.map(jax.typeof, tree)


def test_a_history_may_be_resized_to_nothing_and_back():
    tx, none = dj.delayed(optax.sgd(1.0), 4), dj.delayed(optax.sgd(1.0), 0)
    for params in (jnp.ones(3), {"w": jnp.ones(3)}):
        _, state = tx.update(params, tx.init(params), params)
        empty = dj.resize_history(state, none.init(params))
        updates, empty = none.update(params, empty, params)
        jax.tree.map(
            np.testing.assert_array_equal, updates, optax.tree.scale(-1.0, params)
        )
        back = dj.resize_history(empty, tx.init(params))
        _, back = tx.update(params, back, params)
        assert dj.staleness(back) == 0 and back.gradients.pushed == 3


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("depth", shortened([2, 3, 5], 5))
@pytest.mark.parametrize("delay", [3, {"a": 3, "b": 1}])
def test_a_resized_state_holds_no_buffer_twice_and_may_be_donated(delay, depth, strip):
    def made(bound):
        bounds = jax.tree.map(lambda _: bound, delay)
        asked = jax.tree.map(lambda tau: lambda step: tau, delay)  # clipped to a bound
        return dj.delayed(optax.adam(0.1), asked, max_delay=bounds, keep_params=True)

    params = {"a": jnp.ones(2), "b": jnp.ones(3)}
    old, new = made(3), made(depth)
    state = old.init(params)
    for _ in range(5):
        _, state = old.update(params, state, params)
    state = dj.strip_history(state) if strip else state
    state = dj.resize_history(state, new.init(params))
    spots = [x.unsafe_buffer_pointer() for x in jax.tree.leaves((params, state))]
    assert len(set(spots)) == len(spots)
    step = jax.jit(new.update, donate_argnums=1)
    for t in range(3):
        _, state = step(params, state, params)
        # a stripped history begins at staleness 0; the others have enough gradients
        age = jax.tree.leaves(dj.staleness(state))[0]
        assert age == min(3, depth, t if strip else 3)


CLIP, ADAM = optax.clip_by_global_norm(1.0), optax.adam(0.1)
TREE = {"w": jnp.ones((4, 3)), "embed": jnp.ones((5, 2))}


def refusing(inner):
    """Wraps `inner` in a rule that counts gradients and refuses each third one."""

    def rule(grads, seen, params, **extra_args):
        return seen % 3 != 2, grads, seen + 1

    return dj.refusing(inner, rule, begin=lambda params: jnp.zeros((), jnp.int32))


# (an optimizer without staleness, a function from a delay to one with staleness)
ADOPTED = {
    "around": (ADAM, lambda delay: dj.delayed(ADAM, delay)),
    "keeping parameters": (
        ADAM,
        lambda delay: dj.delayed(ADAM, delay, keep_params=True),
    ),
    "on the host": (
        ADAM,
        lambda delay: dj.delayed(ADAM, delay, history=dj.ring.on_host()),
    ),
    "in a chain": (
        optax.chain(CLIP, ADAM),
        lambda delay: optax.chain(CLIP, dj.delayed(ADAM, delay)),
    ),
    "around a chain": (
        optax.chain(CLIP, ADAM),
        lambda delay: dj.delayed(optax.chain(CLIP, ADAM), delay),
    ),
    "in a part": (
        optax.partition({"a": ADAM, "b": CLIP}, {"w": "a", "embed": "b"}),
        lambda delay: optax.partition(
            {"a": dj.delayed(ADAM, delay), "b": CLIP}, {"w": "a", "embed": "b"}
        ),
    ),
    "delivered": (ADAM, lambda delay: dj.delivered(ADAM, delay)),
    "a delay in a delay": (ADAM, lambda delay: dj.delayed(dj.delayed(ADAM, delay), 1)),
    "injected": (ADAM, lambda delay: dj.inject_staleness(dj.delayed(ADAM, delay))),
    "with a rule around": (ADAM, lambda delay: refusing(dj.delayed(ADAM, delay))),
    "around a rule": (ADAM, lambda delay: dj.delayed(dj.drop_stale(ADAM, 1), delay)),
    "in a rule": (refusing(ADAM), lambda delay: refusing(dj.delayed(ADAM, delay))),
}


def noisy(step, like=TREE):
    """Gradients of a step, the same in each run."""
    return {
        name: jnp.asarray(
            np.random.default_rng([step, i]).normal(size=x.shape), x.dtype
        )
        for i, (name, x) in enumerate(sorted(like.items()))
    }


def stepped(tx, state, steps, like=TREE):
    """The updates of these steps, and the state after them."""
    updates = []
    for step in steps:
        update, state = tx.update(noisy(step, like), state, like)
        updates.append(update)
    return updates, state


@pytest.mark.parametrize("name", ADOPTED)
def test_a_delay_is_adopted_and_left_and_the_optimizer_goes_on(name):
    plain, late = ADOPTED[name][0], ADOPTED[name][1](2)
    _, state = stepped(plain, plain.init(TREE), range(4))
    like = late.init(TREE)
    adopted = dj.resize_history(state, like)
    assert types(adopted) == types(like)
    spots = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(adopted)]
    assert len(set(spots)) == len(spots)
    # the history is that of `init`, and the optimizer's state has not changed
    if hasattr(adopted, "inner_state") and not hasattr(state, "memory"):
        chex.assert_trees_all_equal(
            adopted._replace(inner_state=()), like._replace(inner_state=())
        )
    left = dj.resize_history(adopted, plain.init(TREE))
    assert types(left) == types(state)
    chex.assert_trees_all_equal(left, state)


def test_a_rule_is_adopted_and_left_around_a_history_that_goes_on():
    late = dj.delayed(ADAM, 2)
    _, state = stepped(late, late.init(TREE), range(4))
    adopted = dj.resize_history(state, refusing(late).init(TREE))
    chex.assert_trees_all_equal(adopted.inner_state, state)
    assert (adopted.memory, adopted.dropped) == (0, 0)
    # the rule accepts its first two gradients
    updates, adopted = stepped(refusing(late), adopted, (4, 5))
    expected, state = stepped(late, state, (4, 5))
    chex.assert_trees_all_equal(updates, expected)
    left = dj.resize_history(adopted, late.init(TREE))
    chex.assert_trees_all_equal(left, state)
    # it is not clear which history would continue
    with pytest.raises(ValueError, match=r"got \.applied in place of \.staleness"):
        dj.resize_history(
            dj.delayed(refusing(ADAM), 2).init(TREE), refusing(late).init(TREE)
        )


@pytest.mark.parametrize("layers", [1, 24])
def test_a_state_of_another_optimizer_is_named_by_one_path(layers):
    params = {
        f"layer{i:02}": {"w": jnp.ones(2), "b": jnp.ones(1)} for i in range(layers)
    }
    like = dj.delayed(optax.chain(CLIP, ADAM), 2).init(params)
    named = r"got \.inner_state\[1\]\[0\]\.count in place of \.inner_state\[0\]\.count"
    with pytest.raises(ValueError, match=named) as caught:
        dj.resize_history(ADAM.init(params), like)
    assert len(str(caught.value)) < 300
    # a history of other parameters
    other = dj.delayed(ADAM, 2).init(params | {"norm": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"got .*'norm'.* in place of") as caught:
        dj.resize_history(dj.delayed(ADAM, 2).init(params), other)
    assert len(str(caught.value)) < 300
    with pytest.raises(ValueError, match=r"got \.init in place of \[0\]\.count"):
        dj.resize_history(ADAM.init(params), ADAM)
    tuples = jax.tree.map(lambda x: x, tuple(ADAM.init(params)[0])), ()
    with pytest.raises(ValueError, match=r"got \[0\]\[0\] in place of \[0\]\.count"):
        dj.resize_history(ADAM.init(params), tuples)
    with pytest.raises(ValueError, match="got other containers in place of its cont"):
        dj.resize_history((), optax.EmptyState())


@pytest.mark.parametrize("warmup", ["fresh", "skip", "zeros"])
def test_an_adopted_delay_warms_up_beside_a_list(warmup):
    late = dj.delayed(ADAM, 2, warmup=warmup)
    _, state = stepped(ADAM, ADAM.init(TREE), range(4))
    adopted = dj.resize_history(state, late.init(TREE))
    gradients = [noisy(step) for step in range(4, 10)]
    for t, gradient in enumerate(gradients):
        update, adopted = late.update(gradient, adopted, TREE)
        index = t - 2 if t >= 2 or warmup != "fresh" else 0
        used = gradients[index] if index >= 0 else optax.tree.zeros_like(TREE)
        expected = optax.tree.zeros_like(TREE)
        if index >= 0 or warmup == "zeros":
            expected, state = ADAM.update(used, state, TREE)
        chex.assert_trees_all_equal(update, expected)
    # the plain optimizer continues with the state of the loop above
    left = dj.resize_history(adopted, ADAM.init(TREE))
    chex.assert_trees_all_equal(left, state)


def test_a_producer_that_becomes_another_one_begins_empty():
    late, once = dj.delayed(ADAM, 3), dj.delivered(ADAM, 2)
    _, state = stepped(late, late.init(TREE), range(5))
    moved = dj.resize_history(state, once.init(TREE))
    chex.assert_trees_all_equal(moved.inner_state, state.inner_state)
    chex.assert_trees_all_equal(moved.in_flight, once.init(TREE).in_flight)


def test_the_states_of_workers_adopt_a_delay_as_one_does():
    mean = dj.exchange.mean(ADAM)

    def of(tx):
        def gradient(x, slope):
            return dj.workers.vary(x) - slope

        workers = dj.workers.simulate(step_with(tx, gradient), 4)
        start = jnp.ones(3), tx.init(jnp.ones(3))
        return workers, workers.init(start, jnp.zeros((4, 3)))

    (plain, state), (late, like) = of(mean), of(dj.delayed(mean, 2))
    step = jax.jit(plain.step)
    for t in range(3):
        state, _ = step(state, jnp.full((4, 3), 1.0 + t))
    adopted = dataclasses.replace(
        like, state=dj.resize_history(state.state, like.state)
    )
    assert types(adopted) == types(like)
    # the first gradient is fresh, as in the plain run
    adopted, _ = jax.jit(late.step)(adopted, jnp.full((4, 3), 4.0))
    state, _ = step(state, jnp.full((4, 3), 4.0))
    np.testing.assert_allclose(adopted.state[0], state.state[0], rtol=1e-6)


MESH = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
ON_TWO = {
    "w": jax.device_put(TREE["w"], jax.NamedSharding(MESH, jax.P("data"))),
    "embed": jax.device_put(
        TREE["embed"], jax.NamedSharding(MESH, jax.P(None, "data"))
    ),
}


def placed(state, params):
    """A state whose counters are on the devices of the parameters."""
    if params is TREE:
        return state
    everywhere = jax.NamedSharding(MESH, jax.P())
    is_named = [
        isinstance(x.sharding, jax.NamedSharding) for x in jax.tree.leaves(state)
    ]
    named = jax.tree.unflatten(jax.tree.structure(state), is_named)
    return jax.tree.map(
        lambda x, on: x if on else jax.device_put(x, everywhere), state, named
    )


@pytest.mark.parametrize("params", [TREE, ON_TWO], ids=["one device", "two devices"])
def test_a_delay_is_adopted_and_left_under_orbax_bit_for_bit(params, tmp_path):
    """Saved and restored at each change, beside a run that is never saved."""
    late = dj.delayed(ADAM, 2)

    def saved(state, name):
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / name, state)
            checkpointer.wait_until_finished()
            shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
            return checkpointer.restore(tmp_path / name, shapes)

    def run(stored):
        state, updates = ADAM.init(params), []
        for change, tx in enumerate([ADAM, late, ADAM]):
            like = tx.init(params)
            state = dj.resize_history(state, like)
            state = stored(placed(state, params), str(change))
            spots = jax.tree.map(lambda x: x.sharding, (state, placed(like, params)))
            assert spots[0] == spots[1]
            moves, state = stepped(tx, state, range(4 * change, 4 * change + 4), params)
            updates += moves
        return updates, state

    chex.assert_trees_all_equal(run(saved), run(lambda state, name: state))


def of_embedding(path, leaf):
    return path.endswith("embed")


GROWN = {"w": TREE["w"], "embed": jnp.ones((7, 2))}
RESET = {
    "delayed": lambda depth: dj.delayed(ADAM, 2, max_delay=depth),
    "leaf by leaf": lambda depth: dj.delayed(
        ADAM, {"w": 1, "embed": 2}, max_delay={"w": 1, "embed": depth}
    ),
    "on the host": lambda depth: dj.delayed(
        ADAM, 2, max_delay=depth, history=dj.ring.on_host()
    ),
    "cast": lambda depth: dj.delayed(ADAM, 2, max_delay=depth, history=NARROW),
    "delivered": lambda depth: dj.delivered(ADAM, lambda step: 2, max_delay=depth),
    "in a part": lambda depth: optax.partition(
        {"a": dj.delayed(ADAM, 2, max_delay=depth), "b": ADAM},
        {"w": "b", "embed": "a"},
    ),
}


@pytest.mark.parametrize("depth", shortened([2, 5], 5))
@pytest.mark.parametrize("new", [TREE, GROWN], ids=["reset", "grown"])
@pytest.mark.parametrize("name", RESET)
def test_a_leaf_begins_anew_and_the_others_do_not_notice(name, new, depth):
    old, tx = RESET[name](2), RESET[name](depth)
    _, state = stepped(old, old.init(TREE), range(5))
    begun = dj.resize_history(state, tx.init(new), reset=of_embedding)
    assert types(begun) == types(tx.init(new))
    updates, _ = stepped(tx, begun, range(5, 10), new)
    expected, _ = stepped(old, state, range(5, 10))
    # like the first steps of a run, but Adam's count of steps continues
    adam = ADAM.init(new["embed"])
    adam = (adam[0]._replace(count=jnp.int32(5)), *adam[1:])
    if name == "delivered":  # idle until the first arrival
        adam = (adam[0]._replace(count=jnp.int32(3)), *adam[1:])
    for t, update in enumerate(updates):
        chex.assert_trees_all_equal(update["w"], expected[t]["w"])
        used = jnp.zeros_like(new["embed"])
        if t >= 2:  # the gradient of this leaf of two steps ago
            used = noisy(3 + t, new)["embed"]
            if name == "cast":
                used = used.astype(jnp.bfloat16).astype(jnp.float32)
        step, adam = ADAM.update(used, adam, new["embed"])
        # not equal bit for bit: Adam is compiled for other shapes
        np.testing.assert_allclose(update["embed"], step, rtol=1e-6)
        assert jnp.any(step != 0) == (t >= 2)


JOINED = dj.ring.sharded(
    "data", mesh=jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
)


@pytest.mark.parametrize(
    "tx",
    [dj.delayed(ADAM, 2, keep_params=True), dj.delayed(ADAM, 2, history=JOINED)],
    ids=["keeping parameters", "sharded"],
)
def test_a_history_that_cannot_reset_one_leaf_says_to_begin_anew(tx):
    _, state = stepped(tx, tx.init(TREE), range(5))
    with pytest.raises(ValueError, match=r"`reset` must .*strip_history"):
        dj.resize_history(state, tx.init(TREE), reset=of_embedding)
    like = tx.init(GROWN)
    begun = dj.resize_history(dj.strip_history(state), like, reset=of_embedding)
    chex.assert_trees_all_equal_shapes_and_dtypes(begun, like)
    assert begun.gradients.first == 5
    moments = begun.inner_state[0].mu
    assert jnp.all(moments["embed"] == 0) and jnp.all(moments["w"] != 0)


@pytest.mark.parametrize("warmup", ["zeros", "skip", "fresh"])
def test_a_refused_gradient_is_in_no_slot_of_a_deeper_history(warmup):
    def late(delay):
        inner = dj.delayed(optax.sgd(-1.0), delay, warmup=warmup)
        return dj.refusing(inner, finite)

    state, used = late(2).init(jnp.zeros(())), []
    for gradient in 1.0, 2.0, 3.0, 4.0, jnp.nan:
        _, state = late(2).update(jnp.asarray(gradient), state)
    state = dj.resize_history(state, late(5).init(jnp.zeros(())))
    for gradient in 5.0, 6.0, 7.0, 8.0, 9.0, 10.0:
        update, state = late(5).update(jnp.asarray(gradient), state)
        used.append(float(update))
    early = 3.0 if warmup == "fresh" else 0.0  # 3 is the oldest gradient that is kept
    assert used == [early, early, early, 3.0, 4.0, 5.0]


def finite(grads, memory, params, **extra_args):
    return jnp.isfinite(grads), grads, memory


def test_a_reset_of_no_leaf_is_refused():
    tx = dj.delayed(ADAM, 2)
    for reset in (lambda path, leaf: path.endswith("embedding"), False):
        with pytest.raises(ValueError, match=r"`reset` must choose leaves .* got"):
            dj.resize_history(tx.init(TREE), tx.init(TREE), reset=reset)
