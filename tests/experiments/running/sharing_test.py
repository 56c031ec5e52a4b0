"""Devices that share the parameters of one worker."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from delayjax._src.ground import xla
from experiments import Experiment, optimizer
from experiments.running import execution, sharing
from tests.eight import shared
from tests.eight.shared import HIDDEN, INPUTS, difference, values
from tests.support.cases import shortened

pytestmark = pytest.mark.runs

ROUNDING = 2e-5  # as in tests/eight


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((128, 128), P("model")),
        ((64, 256), P(None, "model")),
        ((3, 30_000), P(None, "model")),
        ((30_001, 4), P(None, "model")),  # 2 does not divide the largest
        ((30_001, 3), P()),
        ((127, 128), P()),  # small
        ((2**14,), P("model")),
        ((), P()),
    ],
)
def test_the_largest_dimension_that_fits_is_sharded(shape, spec):
    assert sharing.by_largest(2)("['w']", shape) == spec


def test_no_leaf_that_is_sharded_is_joined_with_others():
    assert sharing.WHOLE_BELOW >= xla.SMALL


def test_what_is_shaped_like_a_parameter_is_sharded_like_it():
    w, b = jnp.zeros((4, 6)), jnp.zeros(6)
    params = {"a": {"w": w, "b": b}, "w": w}
    state = {
        "moments": params,
        "ring": {"a": {"w": jnp.zeros((2, 1, 5, 4, 6))}},  # slots
        "share": {"a": {"w": jnp.zeros((2, 6))}, "w": jnp.zeros((4, 2))},
        "odd": {"w": jnp.zeros((4, 3))},  # 2 does not divide it
        "other": {"w": jnp.zeros((6, 4))},  # of another shape
        "step": jnp.zeros(()),
    }
    layout = {
        "['a']['w']": P("model"),
        "['a']['b']": P("model"),
        "['w']": P(None, "model"),
    }
    result = sharing.specs(state, params, 2, lambda path, shape: layout[path])
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(state)]
    assert dict(zip(paths, result, strict=True)) == {
        "['moments']['a']['b']": P("model"),
        "['moments']['a']['w']": P("model"),
        "['moments']['w']": P(None, "model"),
        "['odd']['w']": P(),
        "['other']['w']": P(),
        "['ring']['a']['w']": P(None, None, None, "model"),
        "['share']['a']['w']": P("model"),
        "['share']['w']": P(None, "model"),
        "['step']": P(),
    }


@pytest.mark.parametrize("spec", [P("data"), P(None, "model"), P("model", "model")])
def test_a_sharding_that_cannot_be_is_refused(spec):
    with pytest.raises(ValueError, match=r"`sharding` must shard one.*\['w'\]"):
        sharing.specs({}, {"w": jnp.zeros((4, 3))}, 2, lambda path, shape: spec)


@functools.cache
def simulated(workers, groups=1):
    """The same run, simulated."""
    make = shared.make if groups == 1 else shared.make_in_groups
    experiment = Experiment(
        **dict(question="?", task=shared.task(16), updates=shared.UPDATES, seeds=1),
        training=optimizer(make, workers=workers, groups=groups),
        evaluate_every=shared.UPDATES,
    )
    return values(shared.whole(shared.trainer_of(experiment)))


trainer = functools.cache(shared.trainer)  # compiled once for several tests


def parts(state):
    """{leaf: shape of the part on one device} of leaves like the largest parameter."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): (
            leaf.addressable_shards[0].data.shape
        )
        for path, leaf in jax.tree.leaves_with_path(execution.held(state))
        if leaf.shape[-2:] == (INPUTS, HIDDEN)
    }


def test_no_device_holds_the_whole_state_of_a_worker():
    job = trainer(2, 2)
    state = job.init()
    half = (INPUTS, HIDDEN // 2)
    assert parts(state) == {
        "model.params.inner": (1, 1, *half),
        "memory.gradients.slots.inner": (1, 1, 1, 2, *half),  # of its worker
        "memory.origins.slots.params.inner": (1, 1, 2, *half),
        "memory.inner_state.outbox.inner": (1, 1, 1, *half),
        "memory.inner_state.inner_state.0.trace.inner": (1, 1, *half),
    }
    begun, shapes = parts(state), job.shapes()
    places = jax.tree.map(lambda x: x.sharding, state)
    assert places == jax.tree.map(lambda x: x.sharding, shapes)
    given = job.feed.given(0, job.feed.chunk)
    assert given.sharding == job.feed.shapes()[0].sharding
    # each device has 4 of 16 examples
    assert given.addressable_shards[0].data.shape == (job.feed.chunk, 1, 1, 4, INPUTS)
    for _ in range(2):
        state, _ = job.run_chunk(state, given, np.int32(1))
        assert parts(state) == begun
    assert job.run_chunk._cache_size() == 1
    evaluated = job.evaluate(state)["train_loss"]
    assert np.isfinite(evaluated).all()


@pytest.mark.parametrize("model", [1, 2])
def test_members_share_a_gradient_that_the_devices_of_each_share_too(model):
    """Two members of two groups: with a device each, or with halves of two devices."""
    job = shared.trainer(4, model, groups=2)
    state, _ = run = shared.whole(job)
    assert difference(values(run), simulated(4, groups=2)) < ROUNDING
    assert job.run_chunk._cache_size() == 1
    outbox = execution.held(state).memory.inner_state.outbox["inner"]
    assert outbox.shape == (2, 2, 1, 1, INPUTS // 2, HIDDEN)
    members = 1 if model == 1 else 2
    part = (1, members, 1, 1, INPUTS // 2, HIDDEN // model)
    assert outbox.addressable_shards[0].data.shape == part


CASES = [(2, 2, None), (2, 2, 2), (4, 2, None), (4, 4, None), (4, 2, 2)]


@pytest.mark.long
@pytest.mark.parametrize(("workers", "model", "count"), CASES)
def test_workers_of_several_devices_do_what_simulated_ones_do(workers, model, count):
    """Also if each device takes the steps of several workers."""
    job = shared.trainer(workers, model, count)
    assert difference(values(shared.whole(job)), simulated(workers)) < ROUNDING
    assert job.run_chunk._cache_size() == 1


@pytest.mark.parametrize("model", shortened([2, 1], 2))
def test_a_run_goes_on_with_fewer_devices(tmp_path, model):
    """Two workers on four devices continue on two; with `model=2` they take turns."""
    second = shared.trainer(2, model, 2)
    state, losses = shared.resumed(trainer(2, 2), second, tmp_path)
    assert difference(values((state, losses)), simulated(2)) < ROUNDING
    shapes = {part[-2:] for part in parts(state).values()}
    assert shapes == {(INPUTS, HIDDEN // model)}
    assert second.run_chunk._cache_size() == 1
    for leaf, x in zip(*map(jax.tree.leaves, (state, second.shapes())), strict=True):
        assert leaf.sharding.is_equivalent_to(x.sharding, leaf.ndim)


@pytest.mark.long
def test_a_layout_of_one_s_own_is_kept():
    """Tensor parallel: columns of the first matrix, rows of the second."""

    def layout(path, shape):
        return {"['inner']": P(None, "model"), "['outer']": P("model")}.get(path, P())

    job = shared.trainer(2, 2, sharding=layout)
    state, _ = run = shared.whole(job)
    params = execution.held(state).model.params
    outer = params["outer"].addressable_shards[0].data.shape
    assert outer == (1, 1, HIDDEN // 2)
    assert params["bias"].addressable_shards[0].data.shape == (1, 1, HIDDEN)
    assert difference(values(run), simulated(2)) < ROUNDING


@pytest.mark.parametrize(
    ("workers", "model", "options", "message"),
    [
        (2, 0, {}, "`model` must be at least 1"),
        (1, 2, {}, "`model` must be .* 1 where there is one worker, got 2"),
        (2, 3, {}, "`workers=2` must be a multiple of the 4 devices over `model=3`"),
        (
            3,
            2,
            {"examples": 12},
            "`workers=3` must be a multiple of the 4 devices over",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused(workers, model, options, message):
    with pytest.raises(ValueError, match=message):
        shared.trainer(workers, model, **options)
