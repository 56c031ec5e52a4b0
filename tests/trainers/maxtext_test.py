"""Delays in the training loop of MaxText, with NNX, and with Linen if it has that."""

import os
import pathlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import delayjax as dj
from tests.support import extras
from tests.trainers import pages
from tests.trainers.promises import STALENESS, STEPS, WAYS, Promises, Trained

os.environ.setdefault("DECOUPLE_GCLOUD", "TRUE")  # imports nothing of Google Cloud
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    maxtext = extras.import_or_skip("maxtext", "maxtext")  # needs Python >= 3.12
    from maxtext.configs import pyconfig
    from maxtext.optimizers import optimizers
    from maxtext.trainers.pre_train import train as pre_train

pytestmark = pytest.mark.filterwarnings("ignore")

BASE = pathlib.Path(maxtext.__file__).parent / "configs" / "base.yml"
TINY = {
    "run_name": "test",
    "enable_checkpointing": False,
    "dataset_type": "synthetic",
    "per_device_batch_size": 1,
    "max_target_length": 8,
    "base_emb_dim": 16,
    "base_num_query_heads": 2,
    "base_num_kv_heads": 2,
    "base_mlp_dim": 32,
    "base_num_decoder_layers": 2,
    "head_dim": 8,
    "vocab_size": 32,
    "attention": "dot_product",
    "hardware": "cpu",
    "skip_jax_distributed_system": True,
    "sharding_tolerance": 1.0,
    "learning_rate": 1e-2,
    "learning_rate_schedule_steps": 10,
    "enable_goodput_recording": False,
    "monitor_goodput": False,
    "log_config": False,
    "enable_tensorboard": False,
    "save_checkpoint_on_completion": False,
    "jax_cache_dir": "",
}
LINEN = {"pure_nnx": False, "pure_nnx_decoder": False, "enable_nnx": False}
HAS_LINEN = "pure_nnx:" in BASE.read_text()


def train(wrap, *, steps=STEPS, iteration=None, folder="/nonexistent", **config):
    """The state of MaxText after its loop, with a wrapped optimizer."""
    config = TINY | {"steps": steps, "base_output_directory": folder} | config
    flags = [f"{name}={value}" for name, value in config.items()]
    get_optimizer = optimizers.get_optimizer

    def wrapped(*args, **kwargs):
        return wrap(get_optimizer(*args, **kwargs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizers, "get_optimizer", wrapped)
        if iteration:
            patch.setattr(pre_train, "training_loop_iteration", iteration)
        return pre_train.train_loop(
            pyconfig.initialize([None, str(BASE), *flags]), None
        )


OWN_ITERATION = pre_train.training_loop_iteration


def iteration_nnx(device, *args):
    opt_state = device["state"]["optimizer"]["opt_state"]
    opt_state["staleness"][...] = jnp.int32(STALENESS)
    return OWN_ITERATION(device, *args)


def iteration_linen(device, *args):
    state = device["state"]
    opt_state = state.opt_state._replace(staleness=jnp.int32(STALENESS))
    device["state"] = state.replace(opt_state=opt_state)
    return OWN_ITERATION(device, *args)


class TestNNX(Promises):
    @staticmethod
    def train(way):
        state = train(WAYS[way], iteration=iteration_nnx if way == "told" else None)
        params = nnx.to_pure_dict(nnx.filter_state(state["model"], nnx.Param))
        opt_state = nnx.to_pure_dict(state["optimizer"])["opt_state"]
        slots = opt_state.get("gradients", {}).get("slots")
        return Trained(params, slots, opt_state.get("staleness"))


@pytest.mark.skipif(not HAS_LINEN, reason="MaxText has no Linen since 0.2.5")
class TestLinen(Promises):
    @staticmethod
    def train(way):
        iteration = iteration_linen if way == "told" else None
        state = train(WAYS[way], iteration=iteration, **LINEN)
        return Trained.of(state.params, state.opt_state)


def late(inner):
    return dj.delayed(inner, 1)


def leaves(state):
    return [
        leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, float)
    ]


def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    kept = {
        "folder": str(tmp_path),
        "enable_checkpointing": True,
        "async_checkpointing": False,
        "checkpoint_period": 3,
        "save_checkpoint_on_completion": True,
    }
    train(late, steps=4, **kept)
    resumed = train(late, steps=6, **kept)
    whole = train(late, steps=6)
    for leaf, other in zip(leaves(resumed), leaves(whole), strict=True):
        np.testing.assert_array_equal(leaf, other)


def test_layers_that_are_scanned_are_one_leaf_and_the_history_comes_before_them():
    state = train(late)
    mlp = state["optimizer"]["opt_state"]["gradients"]["slots"]["decoder"]["layers"][
        "mlp"
    ]
    kernel = mlp["wi_0"]["kernel"]
    assert kernel.get_metadata("out_sharding") == (None, "embed", "layers", "mlp")
    assert kernel.get_value().shape == (2, 16, 2, 32)


def test_the_page_s_launcher_delays():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizers, "get_optimizer", optimizers.get_optimizer)
        exec(pages.lines("maxtext", 0), {"__name__": "train_delayed"})
        state = train(lambda tx: tx)
    opt_state = nnx.to_pure_dict(state["optimizer"])["opt_state"]
    assert int(opt_state["staleness"]) == 1


def test_the_page_s_iteration_tells_the_staleness():
    ages = iter(range(STEPS))
    names = {"train": pre_train, "measured": lambda: next(ages)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pre_train, "training_loop_iteration", OWN_ITERATION)
        exec(pages.lines("maxtext", 1), names)
        state = train(lambda inner: dj.inject_staleness(dj.delayed(inner, 1)))
    opt_state = nnx.to_pure_dict(state["optimizer"])["opt_state"]
    assert int(opt_state["staleness"]) == STEPS - 1
    # the gradient of the step before: its staleness was one less, and is one step older
    assert int(opt_state["inner_state"]["staleness"]) == (STEPS - 2) + 1


def late_first_layer(inner):
    """By hand: the first of two layers and the embedding have a delay of one step."""

    def init(params):
        return optax.tree.zeros_like(params), jnp.int32(0), inner.init(params)

    def update(grads, state, params=None, **extra_args):
        last, step, inner_state = state

        def one(path, new, old):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            late = jnp.bool_(name.startswith("token_embedder"))
            if name.startswith("decoder/layers"):
                late = jnp.arange(2).reshape(2, *[1] * (new.ndim - 2)) == 0
            return jnp.where(late & (step > 0), old, new)

        late = jax.tree.map_with_path(one, grads, last)
        updates, inner_state = inner.update(late, inner_state, params)
        return updates, (grads, step + 1, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


def test_the_page_s_layers_are_late_each_by_its_own_delay():
    names = {"dj": dj, "optimizers": optimizers}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizers, "get_optimizer", optimizers.get_optimizer)
        names["get_optimizer"] = optimizers.get_optimizer
        exec(pages.lines("maxtext", 2), names)
        late = train(lambda tx: tx)
    by_hand, plain = train(late_first_layer), train(lambda tx: tx)
    ends = [
        jax.tree.leaves(nnx.filter_state(state["model"], nnx.Param))
        for state in (late, by_hand, plain)
    ]
    for got, wanted, _ in zip(*ends, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert any(not np.allclose(a, c, atol=1e-5) for a, _, c in zip(*ends, strict=True))
    staleness = nnx.to_pure_dict(late["optimizer"])["opt_state"]["staleness"]
    kernel = staleness["decoder"]["layers"]["mlp"]["wi_0"]["kernel"]
    assert kernel.shape == (1, 2, 1) and kernel.ravel().tolist() == [1, 0]
