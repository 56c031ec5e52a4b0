"""Remedies for late stages: each changes the training; and the large config."""

import jax
import numpy as np
import optax
import pytest

import delayjax as dj
from configs import pipeline_tokens
from experiments.running.programs import programs
from experiments.running.trainer import Trainer
from experiments.training.late_stages import METHODS
from tests.pipelines import chain
from tests.support.data_sets import write_shard

pytestmark = pytest.mark.runs

SGD = optax.sgd(0.02, 0.5)


def trained(pipe):
    batches = chain.single(chain.batches(12))
    state = pipe.init(chain.single(chain.params(3)), batches[0])
    step = jax.jit(pipe.step)
    for batch in batches:
        state, _ = step(state, batch)
    return pipe.params(state)


def result(method):
    return trained(METHODS[method](chain.parts(), lambda: SGD, 3, 20))


@pytest.mark.parametrize(
    ("cure", "method", "stash"),
    [("prediction", "stash", True), ("PipeMare", "plain", False)],
)
def test_without_a_cure_the_pipeline_is_the_librarys(cure, method, stash):
    schedule = dj.pipelines.pipedream(3, stash=stash)
    plain = trained(dj.pipelines.mixed(chain.parts(), SGD, schedule))
    chain.assert_close(result(method), plain)
    with pytest.raises(AssertionError):
        chain.assert_close(result(cure), plain)


def large(tmp_path, **changed):
    config = pipeline_tokens.get_config()
    small = dict(vocab=20, width=4, heads=2, context=4, batch_size=2, stages=2)
    config.update(small | changed)
    config.shards = str(write_shard(tmp_path / "0.bin", np.arange(2000) % 20))
    return pipeline_tokens.experiment(config)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_is_one_cell_of_late_stages(tmp_path, method):
    (program,) = programs(large(tmp_path, method=method))
    assert program.size == 1
    memory = Trainer(program).shapes().memory
    first, last = memory.past
    assert first and not last  # the versions of the late stage
    assert hasattr(memory.opt_state[0], "velocity") == (method == "PipeMare")


@pytest.mark.parametrize(("width", "heads", "millions"), [(160, 5, 26), (448, 7, 122)])
def test_the_config_names_its_sizes(tmp_path, width, heads, millions):
    config = pipeline_tokens.get_config()
    sizes = {key: config[key] for key in ("vocab", "context", "stages")}
    task = large(tmp_path, **sizes, width=width, heads=heads).task
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert round(count / 1e6) == millions
    assert f"{millions} million" in pipeline_tokens.__doc__


@pytest.mark.parametrize("key", ["method", "optimizer"])
def test_an_unknown_name_is_refused(tmp_path, key):
    with pytest.raises(ValueError, match=f"{key} must be one of"):
        large(tmp_path, **{key: "hope"})
