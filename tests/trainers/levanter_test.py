"""Delays in the Trainer of the package Levanter, with named arrays."""

import dataclasses
import functools
import warnings

import jax
import numpy as np
import pytest
import yaml

import delayjax as dj
from tests.support import extras
from tests.trainers import pages
from tests.trainers.promises import STALENESS, STEPS, WAYS, Promises, Trained

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    extras.import_or_skip("levanter", "levanter")
    import draccus
    import equinox as eqx
    import haliax as hax
    from levanter import checkpoint
    from levanter.optim import AdamConfig, OptimizerConfig
    from levanter.tracker import NoopConfig
    from levanter.trainer import Trainer, TrainerConfig

pytestmark = pytest.mark.filterwarnings("ignore")

IN, OUT = hax.Axis("embed", 8), hax.Axis("mlp", 4)
ADAM = AdamConfig(learning_rate=0.1, warmup=0, lr_schedule="constant")


class Model(eqx.Module):
    kernel: hax.NamedArray
    bias: hax.NamedArray

    def __call__(self, x):
        return hax.tanh(hax.dot(x, self.kernel, axis=IN)) + self.bias


def make():
    return Model(hax.random.normal(jax.random.PRNGKey(0), (IN, OUT)), hax.zeros(OUT))


def loss(model, x, key=None):
    return hax.mean((model(x) - 1.0) ** 2).scalar(), {}


def train(tx, *, steps=STEPS, is_late=False, **config):
    """The state of the trainer after `steps`; "embed" is sharded over four devices."""
    config = TrainerConfig(
        id="test",
        tracker=NoopConfig(),
        train_batch_size=8,
        num_train_steps=steps,
        require_accelerator=False,
        log_jaxprs=False,
        log_xla_hlo=False,
        **({"load_checkpoint": False} | config),
    )
    with Trainer(config, tx, loss, add_default_hooks=False) as trainer:
        state = trainer.initial_state(jax.random.PRNGKey(1), model_init=make)
        for t in range(int(state.step), steps):
            x = jax.random.normal(jax.random.PRNGKey(2 + t), (8, 8))
            if is_late:
                opt_state = state.opt_state._replace(
                    staleness=jax.numpy.int32(STALENESS)
                )
                state = dataclasses.replace(state, opt_state=opt_state)
            state = trainer.train_step(state, hax.named(x, ("batch", "embed"))).state
    return state


class TestTrainer(Promises):
    @staticmethod
    def train(way):
        state = train(WAYS[way](ADAM.build(STEPS)), is_late=way == "told")
        return Trained.of(state.model, state.opt_state)


@pytest.mark.parametrize("delay", [0, 1])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, delay):
    tx = dj.delayed(ADAM.build(6), delay)
    half = train(tx, steps=3)
    checkpoint.save_checkpoint(half.saveable_state, 3, str(tmp_path))
    resumed = train(
        tx, steps=6, load_checkpoint=True, load_checkpoint_path=str(tmp_path)
    )
    whole = train(tx, steps=6)
    assert int(resumed.step) == 6
    for state in ("model", "opt_state"):
        for leaf, other in zip(
            jax.tree.leaves(getattr(resumed, state)),
            jax.tree.leaves(getattr(whole, state)),
            strict=True,
        ):
            np.testing.assert_array_equal(leaf, other)


def test_a_bad_step_is_skipped_and_its_gradient_waits_in_the_history():
    """`skip_bad_steps` hands `loss=` on, and `delayed` passes it on."""
    adam = dataclasses.replace(ADAM, skip_bad_steps=2)
    state = train(dj.delayed(adam.build(STEPS), 1))
    assert int(state.opt_state.gradients.pushed) == STEPS
    assert np.isfinite(state.model.kernel.array).all()


@functools.cache  # a name can be registered once
def page_s_names():
    names = {"jnp": jax.numpy, "dataclasses": dataclasses}
    exec(pages.lines("levanter", 0), names)
    return names


def test_the_page_s_configuration_is_read_and_built():
    names = page_s_names()
    text = pages.lines("levanter", language="yaml")
    config = draccus.decode(OptimizerConfig, yaml.safe_load(text)["optimizer"])
    assert config == names["DelayedConfig"](
        inner=AdamConfig(learning_rate=6e-4), delay=1
    )
    state = train(config.build(STEPS))
    assert int(state.opt_state.staleness) == 1


def test_the_page_s_lines_set_the_staleness():
    names = page_s_names()
    exec(pages.lines("levanter", 1).split("\n\n\n")[0], names)
    state = train(dj.inject_staleness(ADAM.build(STEPS)), steps=1)
    assert int(names["told"](state, 5).opt_state.staleness) == 5
