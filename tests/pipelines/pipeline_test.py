"""A stage's optimizer sees the layers apart, whatever holds them together."""

import functools

import jax
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import pipelines
from tests.pipelines import chain
from tests.support.cases import shortened


@pytest.mark.parametrize(
    ("name", "stages"),
    shortened(
        [(name, stages) for name in chain.BY_LEAF for stages in (1, 2, 8)],
        # by the rank, by the norm, and with a mask of the leaves
        *(("muon", 2), ("agc", 2), ("adamw", 2), ("agc", 8)),
    ),
)
def test_without_delay_stages_are_a_loop_of_the_model_whose_layers_lie_apart(
    name, stages
):
    schedule = pipelines.gpipe(stages, 1)
    check_loop(pipelines.mixed(chain.biased(), chain.BY_LEAF[name], schedule), name)


@pytest.mark.parametrize("make", (pipelines.late, pipelines.vertical_sync))
def test_so_are_the_other_pipelines(make):
    schedule = pipelines.gpipe(2, 2)
    check_loop(make(chain.biased(), chain.BY_LEAF["muon"], schedule), "muon")


def check_loop(pipe, name):
    """Muon turns roundings of a gradient into several of an update."""
    batches = chain.single(chain.batches(5))
    state = pipe.init(chain.single(chain.with_biases(8)), batches[0])
    step, expected = jax.jit(pipe.step), chain.loop_of_layers(name)
    for batch, (loss, params) in zip(batches, expected, strict=True):
        state, now = step(state, batch)
        np.testing.assert_allclose(now, loss, rtol=1e-4)
        chain.assert_close(chain.layers_apart(pipe.params(state)), params, times=20)


CLIPPED = chain.BY_LEAF["agc"]  # by the norms of each leaf, by its rank
LATE = pipelines.pipedream(3)
POINTS = {
    "stale_params": lambda parts: pipelines.mixed(
        parts, optax.chain(dj.compensate_delay(0.5), CLIPPED), LATE
    ),
    "stale_params of late": lambda parts: pipelines.late(
        parts, optax.chain(dj.compensate_delay(0.5), CLIPPED), LATE, keep_params=True
    ),
    "forward_point": lambda parts: pipelines.mixed(
        parts,
        functools.partial(predicting, CLIPPED),
        LATE,
        forward_point=dj.gradient_params,
    ),
    "forward_point of late": lambda parts: pipelines.late(
        parts,
        functools.partial(predicting, CLIPPED),
        LATE,
        forward_point=dj.gradient_params,
    ),
    "backward_point": lambda parts: pipelines.mixed(
        parts,
        lambda delay: pipelines.discrepancy_correction(CLIPPED, delay, decay=0.5),
        pipelines.pipemare(3, 1),
        backward_point=pipelines.backward_params,
    ),
    "vertical sync": lambda parts: pipelines.vertical_sync(parts, CLIPPED, LATE),
}


def predicting(optimizer, delay):
    return dj.predict_weights(optimizer, delay)


@pytest.mark.parametrize(
    "name", shortened(POINTS, "stale_params", "forward_point of late", "backward_point")
)
def test_stacked_layers_train_as_a_list_of_layers_does(name):
    """What rules and points read, too; a list reaches them as it is."""
    stacked, batches = chain.single(chain.with_biases(4)), chain.batches(6)
    ends = []
    for start in (stacked, chain.layers_apart(stacked)):
        pipe = POINTS[name](chain.biased())
        state, step = pipe.init(start, np.float32(batches[0])), jax.jit(pipe.step)
        for batch in chain.single(batches):
            state, loss = step(state, batch)
        ends.append((loss, pipe.params(state)))
    (loss, params), (expected, layers) = ends
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    chain.assert_close(chain.layers_apart(params), layers, times=20)


def test_a_mistake_in_a_function_of_a_known_delay_is_shown_as_it_is():
    """Only where the delay is traced does the error name it."""

    def broken(delay):
        return bool(jax.jit(lambda x: bool(x))(delay))

    with pytest.raises(jax.errors.TracerBoolConversionError):
        pipelines.mixed(chain.parts(), broken, LATE)
