import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from delayjax._src.ground import axes, checks, extras, transforms, trees


def workers_mesh(axis_type=AxisType.Auto):
    return jax.make_mesh((4,), ("workers",), axis_types=(axis_type,))


def test_vary_outside_of_any_axis_is_the_identity():
    tree = {"w": jnp.ones(2), "b": ()}
    assert dj.workers.vary(tree) is tree


def test_vary_under_vmap_is_the_identity():
    tree = jnp.arange(4.0)
    varied = jax.vmap(dj.workers.vary, axis_name="workers")(tree)
    np.testing.assert_array_equal(varied, tree)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_vary_marks_leaves_as_varying_once_and_keeps_values(axis_type):
    mesh = workers_mesh(axis_type)
    params = jax.device_put({"w": jnp.ones(3)}, NamedSharding(mesh, P()))

    def step(params):
        varied = dj.workers.vary(params)
        marked = jax.lax.pcast(params["w"], "workers", to="varying")
        assert jax.typeof(params["w"]) != jax.typeof(marked)
        assert jax.typeof(varied["w"]) == jax.typeof(marked)
        assert jax.typeof(dj.workers.vary(varied)["w"]) == jax.typeof(marked)
        return jax.lax.pmean(varied, "workers")

    mean = jax.shard_map(step, mesh=mesh, in_specs=P(), out_specs=P())(params)
    np.testing.assert_array_equal(mean["w"], params["w"])


def test_gradients_at_varied_parameters_are_each_workers_own():
    """At replicated ones the gradient arrives summed, and a mean does nothing."""
    data = jnp.arange(4.0)

    def at(place):
        def step(x, d):
            grad = jax.grad(lambda x: jnp.sum(x * d))(place(x))
            return jax.lax.pmean(grad, "workers")

        specs = {"in_specs": (P(), P("workers")), "out_specs": P()}
        return jax.shard_map(step, mesh=workers_mesh(), **specs)(jnp.ones(()), data)

    assert at(dj.workers.vary) == jnp.mean(data)
    assert at(lambda x: x) == jnp.sum(data)


def test_vary_leaves_other_axes_alone():
    mesh = jax.make_mesh((4,), ("devices",), axis_types=(AxisType.Auto,))

    def step(x):
        assert dj.workers.vary(x) is x
        return dj.workers.vary(x, axis_name="devices")

    ones = jax.shard_map(step, mesh=mesh, in_specs=P(), out_specs=P("devices"))
    np.testing.assert_array_equal(ones(jnp.ones(1)), jnp.ones(4))


def test_require_hands_a_value_through():
    assert extras.require(0, "staleness", "rule", "wrap it") == 0


def test_require_names_the_argument_who_needs_it_and_the_remedy():
    match = r"`rule` needs the extra argument `staleness`.*wrap it.*`staleness=`"
    with pytest.raises(TypeError, match=match):
        extras.require(None, "staleness", "rule", "wrap it")


def test_broadcast_gives_each_leaf_its_prefix():
    def law(step):
        return step

    tree = {"a": {"x": 0, "y": 0}, "b": 0}
    assert trees.broadcast("delay", 1, tree) == {"a": {"x": 1, "y": 1}, "b": 1}
    assert trees.broadcast("delay", {"a": law, "b": 2}, tree) == {
        "a": {"x": law, "y": law},
        "b": 2,
    }


def test_broadcast_names_what_is_no_prefix():
    with pytest.raises(ValueError, match=r"`delay` must be one value or a prefix"):
        trees.broadcast("delay", {"c": 1}, {"a": 0})


def test_multi_steps_is_a_transformation():
    """The mean of two gradients, one step of SGD behind every second one."""
    multi = optax.MultiSteps(optax.sgd(1.0), every_k_schedule=2)
    tx = transforms.as_transformation("inner", multi)
    state = tx.init(jnp.zeros(()))
    updates = []
    for grad in (1.0, 3.0, 5.0, 7.0):
        update, state = tx.update(jnp.asarray(grad), state, staleness=0)
        updates.append(float(update))
    assert updates == [0.0, -2.0, 0.0, -6.0]


def test_any_pair_is_a_transformation_that_ignores_extra_arguments():
    tx = transforms.as_transformation("inner", optax.sgd(1.0))
    assert tx.update(jnp.ones(()), tx.init(jnp.ones(())), staleness=3)[0] == -1.0


@pytest.mark.parametrize("bad", [0.1, None, optax.sgd])
def test_what_is_no_transformation_is_named(bad):
    match = rf"`inner` must be an Optax transformation, got {re.escape(repr(bad))}"
    with pytest.raises(TypeError, match=match):
        transforms.as_transformation("inner", bad)


@pytest.mark.parametrize("value", [0, 3, np.int64(3), jnp.int32(3)])
def test_bounds_are_python_ints(value):
    bound = checks.check_bound("max_delay", value)
    assert type(bound) is int
    assert bound == int(value)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (-1, ValueError),
        (1.0, TypeError),
        (True, TypeError),
        ("1", TypeError),
        (None, TypeError),
        (np.array([1]), TypeError),
    ],
)
def test_bounds_that_are_none_are_named(bad, error):
    with pytest.raises(error, match=rf"`max_delay` must be .*{re.escape(repr(bad))}"):
        checks.check_bound("max_delay", bad)


def test_a_traced_bound_is_refused():
    with pytest.raises(TypeError, match="`max_delay` must be a static integer"):
        jax.jit(lambda bound: checks.check_bound("max_delay", bound))(3)


@pytest.mark.parametrize("value", [0, 0.5, np.float32(0.9), jnp.float32(0.9)])
def test_numbers_in_range_pass(value):
    checks.check_number("decay", value, below=1.0)


@pytest.mark.parametrize("bad", [-0.1, np.nan, np.inf, jnp.float32(np.nan)])
def test_negative_and_non_finite_numbers_are_named(bad):
    with pytest.raises(ValueError, match=f"`rate` must be finite and .*, got {bad}"):
        checks.check_number("rate", bad)


@pytest.mark.parametrize("bad", [-0.1, 1.0, 1.1, np.nan])
def test_numbers_out_of_range_are_named(bad):
    with pytest.raises(ValueError, match=rf"`decay` must be in \[0, 1.0\), got {bad}"):
        checks.check_number("decay", bad, below=1.0)


@pytest.mark.parametrize("bad", [1j, "0.5", b"0", None, [0.5], jnp.ones(2), np.ones(2)])
def test_what_is_no_number_is_named(bad):
    match = rf"`decay` must be a number, got {re.escape(repr(bad))}"
    with pytest.raises(TypeError, match=match):
        checks.check_number("decay", bad)


def test_traced_numbers_pass():
    def double(number):
        checks.check_number("decay", number)
        return 2 * number

    assert jax.jit(double)(-1.0) == -2.0


@pytest.mark.parametrize("kind", [jnp.integer, jnp.bool_])
@pytest.mark.parametrize("bad", [1.5, 1j])
def test_an_answer_of_no_such_kind_is_named(bad, kind):
    with pytest.raises(TypeError, match=r"`law\(tau\)` must be an? .*, got "):
        checks.as_scalar("law(tau)", bad, kind)


def test_an_answer_is_one_of_its_kinds():
    assert checks.as_scalar("law(tau)", 2, jnp.integer) == 2
    assert checks.as_scalar("law(tau)", True, jnp.integer, jnp.bool_)
    with pytest.raises(TypeError, match="must be an integer, got bool"):
        checks.as_scalar("law(tau)", True, jnp.integer)
    with pytest.raises(ValueError, match=r"must be a scalar, got shape \(7,\)"):
        checks.as_scalar("law(tau)", jnp.ones(7, int), jnp.integer)


@pytest.mark.parametrize("bad", [True, 1j])
def test_an_answer_that_is_no_number_is_named(bad):
    with pytest.raises(TypeError, match=r"`law\(tau\)` must be a real number, got "):
        checks.as_scalar("law(tau)", bad)


@pytest.mark.parametrize("bad", [None, 3, "", (), ("a", ""), ("a", "a"), ["a"]])
def test_what_names_no_axis_is_named(bad):
    with pytest.raises(TypeError, match=rf"`axis_name` .*{re.escape(repr(bad))}"):
        axes.as_names(bad)


def test_integer_gradients_are_named_by_path():
    grads = {"a": jnp.ones(2), "b": [jnp.ones(2, jnp.bfloat16), jnp.ones(2, int)]}
    with pytest.raises(TypeError, match=r"`rule` needs.*int.*\['b'\]\[1\].*masked"):
        extras.check_gradients("rule", grads)
    extras.check_gradients("rule", {"a": grads["a"], "b": grads["b"][:1]})


@pytest.mark.parametrize("bad", [1.5, -1, True, np.arange(3)])
def test_staleness_that_is_no_count_of_steps_is_named(bad):
    rule = re.escape(f"got {bad!r}")
    match = rf"`staleness` handed to `rule` must be a non-negative integer.*{rule}"
    with pytest.raises(ValueError, match=match):
        extras.check_staleness("rule", {"a": 0, "b": bad})


def test_staleness_becomes_int32_leaf_by_leaf():
    staleness = {"a": 1, "b": [np.int64(2), jnp.int8(3)]}
    checked = extras.check_staleness("rule", staleness)
    assert jax.tree.map(int, checked) == {"a": 1, "b": [2, 3]}
    assert {leaf.dtype for leaf in jax.tree.leaves(checked)} == {jnp.dtype("int32")}
