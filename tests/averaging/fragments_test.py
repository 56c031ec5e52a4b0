"""The fragments of a model cover it exactly once; other assignments are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import averaging
from delayjax._src.averaging.fragments import Split
from tests.averaging.driving import SGD

MODEL = {
    "embed": np.arange(6.0).reshape(3, 2),
    "layers": {"kernel": np.arange(24.0).reshape(4, 2, 3), "scale": np.ones((2, 4))},
    "head": np.asarray(7.0),
}


def strided(path, leaf):
    """Layers 0 ... 3 go to two fragments in turn; other leaves go to the first."""
    if path == "layers/kernel":
        return 1 + np.arange(4) % 2
    return 1 + np.arange(4)[None] % 2 if path == "layers/scale" else 0


SPLITS = {  # name: (fragments, the sizes of the fragments)
    "one": (1, [39]),
    "of one size": (2, [7 + 24, 8]),
    "in three": (3, [7, 24, 8]),  # by the middles of the leaves: 3, 6.5, 19, 35 of 39
    "by a prefix": ({"embed": 1, "layers": 0, "head": 1}, [32, 7]),
    "by path and layer": (strided, [7, 16, 16]),
}


@pytest.mark.parametrize("fragments, sizes", SPLITS.values(), ids=SPLITS)
def test_fragments_hold_each_number_of_the_model_once(fragments, sizes):
    split = Split(fragments, MODEL)
    parts = [split.cut(MODEL, number) for number in range(split.count)]
    assert [sum(map(np.size, jax.tree.leaves(part))) for part in parts] == sizes
    joined = jax.tree.map(lambda leaf: np.full(leaf.shape, np.nan), MODEL)
    for number, part in enumerate(parts):
        joined = split.replaced(joined, number, part)
    jax.tree.map(np.testing.assert_array_equal, joined, MODEL)


def test_a_fragment_has_the_layers_that_are_numbered_so():
    first, second = (Split(strided, MODEL).cut(MODEL, n) for n in (1, 2))
    kernel, scale = (MODEL["layers"][name] for name in ("kernel", "scale"))
    np.testing.assert_array_equal(first["layers"]["kernel"], kernel[::2])
    np.testing.assert_array_equal(second["layers"]["kernel"], kernel[1::2])
    np.testing.assert_array_equal(second["layers"]["scale"], scale[:, 1::2])
    assert isinstance(first["embed"], optax.MaskedNode)


def begun(fragments, **arguments):
    arguments = {"period": 12} | arguments
    return averaging.outer(SGD, SGD, fragments=fragments, **arguments).init(MODEL)


@pytest.mark.parametrize(
    ("fragments", "message"),
    [
        ({"embed": 0, "head": 1}, r"`fragments` must be .*: .*expected keys.*'layers'"),
        (lambda path, leaf: 1, r"number the fragments 0, 1, .*, got \[1\]"),
        (lambda path, leaf: -1, r"number the fragments 0, 1, .*, got \[-1\]"),
        (6, r"`fragments` must leave a leaf to each .* got 6 for \d leaves: lower it"),
        (lambda path, leaf: {"embed": 0}[path], "'head'"),
        (lambda path, leaf: leaf.layers, "no attribute 'layers'"),
        (
            lambda path, leaf: None,
            r"`fragments` must be integers, got None at \['embed'\]\.",
        ),
        (lambda path, leaf: "head", r"`fragments` must be integers, got 'head' at"),
        (lambda path, leaf: np.zeros(5, int), r"got shape \[5\] for a leaf of shape"),
        (lambda path, leaf: np.zeros((2, 2), int), r"got shape \[2, 2\] for a leaf"),
    ],
)
def test_fragments_that_do_not_cover_the_model_once_are_refused(fragments, message):
    with pytest.raises(
        (ValueError, TypeError, KeyError, AttributeError), match=message
    ):
        begun(fragments)


def test_one_leaf_may_have_an_array_of_its_layers_and_any_integer_is_a_count():
    one_leaf = np.ones((4, 3))
    tx = averaging.outer(SGD, SGD, period=4, fragments=np.arange(4) % 2, axis_name=None)
    fragments = tx.init(one_leaf).memory.fragments
    assert [fragment.center.shape for fragment in fragments] == [(2, 3), (2, 3)]
    for count in (2, np.int8(2), jnp.asarray(2)):
        tx = averaging.outer(SGD, SGD, period=4, fragments=count, axis_name=None)
        assert len(tx.init(MODEL).memory.fragments) == 2


def test_fewer_fragments_than_asked_for_are_refused():
    """The middles of the leaves, 0.5 and 51 of 101, are in two of three parts."""
    tx = averaging.outer(SGD, SGD, period=12, fragments=3)
    with pytest.raises(
        ValueError,
        match="`fragments` must leave a leaf to each of the fragments, which have about"
        " one size, got 3 for 2 leaves: lower it, or number leaves or layers by a func",
    ):
        tx.init({"a": jnp.ones(1), "b": jnp.ones(100)})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"period": 0}, "`period` must be at least 1, got 0"),
        (
            {"period": 7, "fragments": 2},
            "`period` must be a multiple of 2, the number of fragments, got",
        ),
        (
            {"period": 7, "fragments": strided},
            "`period` must be a multiple of 3, the number of fragments, got",
        ),
        ({"delay": 12, "fragments": 1}, "`delay` must be less than .* 12, got 12"),
        ({"delay": 4, "fragments": strided}, "less than period / fragments, 4, got 4"),
    ],
)
def test_times_at_which_exchanges_would_meet_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        begun(**({"fragments": 1} | arguments))


def test_a_server_that_needs_the_loss_is_refused():
    tx = averaging.outer(SGD, optax.polyak_sgd(), period=2, axis_name=None)
    with pytest.raises(TypeError, match=r"missing 1 required .* argument: 'value'"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)), jnp.ones(2))
    tx = averaging.outer(SGD, optax.lbfgs(), period=2)
    with pytest.raises((ValueError, TypeError), match="`server` must"):
        tx.init(jnp.ones(2))


def resumed(tx, state):
    """A step of `tx` with the state of another one."""
    return jax.eval_shape(
        jax.vmap(
            lambda _: tx.update(MODEL, state, MODEL)[0],
            axis_name="workers",
            axis_size=4,
            in_axes=None,
        ),
        0,
    )


def test_a_state_of_another_assignment_of_leaves_or_layers_is_refused():
    """Also for three fragments, two of which have the same leaves."""

    def tx(numbers):
        return averaging.outer(SGD, SGD, period=12, fragments=numbers)

    def three_layers(path, leaf):
        return np.asarray([1, 1, 1, 2]) if path == "layers/kernel" else 0

    def two_layers(path, leaf):
        return np.asarray([1, 1, 2, 2]) if path == "layers/kernel" else 0

    state = tx({"embed": 0, "layers": 1, "head": 1}).init(MODEL)
    message = r"cut fragment 0 as the state has it, got None for .* at \['layers'\]"
    with pytest.raises(TypeError, match=message):
        resumed(tx({"embed": 0, "layers": {"kernel": 0, "scale": 1}, "head": 1}), state)
    message = r"`fragments` must .* 1 .* got float32\[3, 2, 3\] for float32\[2, 2, 3\]"
    with pytest.raises(TypeError, match=message):
        resumed(tx(two_layers), tx(three_layers).init(MODEL))


def test_a_state_of_other_fragments_or_another_delay_is_refused():
    two = averaging.outer(SGD, SGD, period=12, fragments=2)
    with pytest.raises(ValueError, match="`fragments` is 2, but the state has 1"):
        resumed(two, begun(1))
    late = averaging.outer(SGD, SGD, period=12, delay=1)
    with pytest.raises(ValueError, match="`delay` is 1, but the state has"):
        resumed(late, begun(1))
    sparse = averaging.outer(
        SGD, SGD, period=12, compress=lambda tree, step: (tree, lambda message: message)
    )
    with pytest.raises(ValueError, match=r"`compress` is .*, but the state has"):
        resumed(sparse, begun(1))


def test_a_late_exchange_keeps_the_types_of_a_worker_with_parameters_of_its_own():
    tx = averaging.outer(SGD, SGD, period=4, delay=1, fragments=2)
    types = []

    def worker(params):
        params = dj.workers.vary(params)
        state = tx.init(params)
        types.extend([state, tx.update(params, state, params)[1]])

    mesh = jax.sharding.AbstractMesh((2,), ("workers",))
    specs = jax.sharding.PartitionSpec()
    of_a_worker = jax.shard_map(worker, mesh=mesh, in_specs=specs, out_specs=specs)
    jax.eval_shape(of_a_worker, jax.eval_shape(lambda: MODEL))
    before, after = (jax.tree.map(jax.typeof, state) for state in types)
    assert before == after
