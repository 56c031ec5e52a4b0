"""The compiler options of late exchanges, by device."""

import types

import jax
import jax.numpy as jnp
import pytest

import delayjax as dj
from delayjax._src.exchange.overlap_options import GPU, TPU, TPU_V6E


def test_options_of_gpus_are_known_and_those_of_cpus_are_none():
    lowered = jax.jit(jnp.tanh).lower(1.0)
    lowered.compile(compiler_options=GPU)
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        lowered.compile(compiler_options={"xla_gpu_enable_nothing": True})
    assert dj.exchange.overlap_options(jax.devices("cpu")[0]) == {}


@pytest.mark.parametrize(
    ("platform", "kind", "options"),
    [
        ("tpu", "TPU v5 lite", TPU),
        ("tpu", "TPU v6 lite", TPU_V6E),
        ("gpu", "NVIDIA H100 80GB HBM3", GPU),
    ],
)
def test_a_device_has_the_options_of_its_kind(platform, kind, options):
    device = types.SimpleNamespace(platform=platform, device_kind=kind)
    assert dj.exchange.overlap_options(device) == options
