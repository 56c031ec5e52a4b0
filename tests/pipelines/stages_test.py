"""The stage of a leaf follows from its path."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import pipelines
from delayjax.delays import Layers

PARAMS = {
    "embed": {"table": jnp.ones((5, 2))},
    "blocks": {"w": jnp.ones((2, 6)), "norm": {"scale": jnp.ones((3, 6))}},
    "head": jnp.ones(2),
}
FOUR = pipelines.pipedream(4)
ENDS = {"embed": 0, "head": 3}


def test_layers_are_spread_over_the_stages_along_their_axis():
    """floor(4 l / 6) = 0, 0, 1, 2, 2, 3; the delay of stage s is 3 - s."""
    delays = pipelines.stage_delays(FOUR, PARAMS, ENDS, layers={"blocks": 1})
    layers = Layers((3, 3, 2, 1, 1, 0), 1)
    assert delays == {
        "embed": {"table": 3},
        "blocks": {"w": layers, "norm": {"scale": layers}},
        "head": 0,
    }


def test_a_function_of_the_path_says_the_same_as_beginnings():
    def stage(path):
        return {"embed/table": 0, "head": 3}[path]

    def as_numpy(path):
        return np.int64(stage(path))

    for ends in (ENDS, {"embed/table": 0, "head": 3}, stage, as_numpy):
        delays = pipelines.stage_delays(FOUR, PARAMS, ends, layers={"blocks": 1})
        assert delays["embed"] == {"table": 3} and delays["head"] == 0


def test_delayed_takes_them_also_from_shapes():
    shapes = jax.eval_shape(lambda: PARAMS)
    delays = pipelines.stage_delays(FOUR, shapes, ENDS, layers={"blocks": 1})
    tx = dj.delayed(optax.sgd(0.1), delays)
    _, state = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    _, state = tx.update(PARAMS, state, PARAMS)
    staleness = dj.staleness(state)
    assert staleness["embed"]["table"] == 1 and staleness["head"] == 0
    assert staleness["blocks"]["w"].ravel().tolist() == [1, 1, 1, 1, 1, 0]


ALL = {"embed": 0, "blocks": 1, "head": 3}
WRONG = {
    "no leaf": (dict(stages={**ALL, "tail": 1}), "no leaf is at"),
    "half a name": (
        dict(stages={"emb": 0, "blocks": 1, "head": 3}),
        r"`stages` must have a stage for 'embed/table', got \['emb',",
    ),
    "no stage": (
        dict(stages={"embed": 0}),
        "`stages` must have a stage for 'blocks/norm/scale', got",
    ),
    "two stages": (dict(stages={**ALL, "blocks/w": 1}), "'blocks/w' one stage"),
    "two kinds": (dict(stages=ALL, layers={"blocks": 1}), "one stage"),
    "outside": (dict(stages={**ALL, "head": 4}), "must be in 0 .. 3, got 4"),
    "too few layers": (
        dict(stages=ENDS, layers={"blocks/norm": 0, "blocks/w": 1}),
        "`schedule` must have at most 3 stages, the layers at",
    ),
    "no such axis": (
        dict(stages=ENDS, layers={"blocks": 5}),
        "`layers` must be an axis of 'blocks/.*', got 5",
    ),
    "several delays": (
        dict(schedule=pipelines.pipedream(4, microbatches=2), stages=ALL),
        r"`schedule` must have one delay at stage 0, got \{1, 2\}: take",
    ),
}


@pytest.mark.parametrize("change, message", WRONG.values(), ids=WRONG)
def test_a_wrong_stage_is_refused(change, message):
    given = dict(schedule=FOUR) | change
    with pytest.raises(ValueError, match=message):
        pipelines.stage_delays(params=PARAMS, **given)
