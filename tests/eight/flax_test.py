"""The guide's sharded Flax models, run as they are written there on eight devices."""

import re

import pytest

from tests.support.commands import ROOT, printed

pytestmark = pytest.mark.runs

BEFORE = """
import jax
jax.config.update("jax_num_cpu_devices", 8)
import jax.numpy as jnp
import numpy as np
import optax
import flax.linen as nn
from flax import nnx
from flax.training.train_state import TrainState
import delayjax as dj

class Model(nnx.Module):
    def __init__(self, rngs):
        kernel = nnx.with_metadata(
            nnx.initializers.lecun_normal(), out_sharding=("fsdp", None))
        self.inner = nnx.Linear(16, 8, rngs=rngs, kernel_init=kernel)
        self.outer = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.outer(jnp.tanh(self.inner(x)))

@nnx.jit(donate_argnums=(0, 1))
def nnx_step(model, optimizer, x, y):
    grads = nnx.grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
    optimizer.update(model, grads)

net = nn.Dense(1, kernel_init=nn.with_logical_partitioning(
    nn.initializers.lecun_normal(), ("embed", None)))
rules, key = [("embed", "fsdp")], jax.random.key(0)
x = jnp.linspace(-1, 1, 64).reshape(4, 16)
y = jnp.ones((4, 1))
"""
AFTER = """
import json
slots = optimizer.opt_state.gradients.slots["inner"]["kernel"].get_value()
found = slots, state.opt_state.gradients.slots["kernel"].value
print(json.dumps([[x.shape, x.sharding.shard_shape(x.shape)] for x in found]))
"""


def test_each_of_eight_devices_holds_its_part_of_every_slot():
    (lines,) = re.findall(
        r"\*\*Sharded\.\*\*.*?```python\n(.*?)```",
        (ROOT / "docs" / "howto" / "flax.md").read_text(),
        re.DOTALL,
    )
    (result,) = printed(["-W", "error", "-c", BEFORE + lines + AFTER])
    assert result == [[[3, 16, 8], [3, 2, 8]], [[3, 16, 1], [3, 2, 1]]]
