"""The tests of this folder compile for chips that are not here."""

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def no_tpu():
    # otherwise JAX looks for a TPU once, if libtpu is installed
    jax.config.update("jax_platforms", "cpu")
