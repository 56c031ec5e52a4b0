"""Programs as users compile them, in spite of the flags of tests/conftest.py.

For tests that look for one of XLA's operations, and for programs that run for seconds.
"""

import importlib.metadata

import jax
import optax

AS_USUAL = {"xla_backend_optimization_level": 3}
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # without them XLA makes loops of scatters
    AS_USUAL["xla_cpu_use_fusion_emitters"] = True


def compile_as_usual(lowered):
    """The compiled program."""
    return lowered.compile(compiler_options=AS_USUAL)


def lowered(tx, params, **given):
    """A donated step as in a user's loop; the gradient is an argument."""

    def step(params, state, grads, given):
        updates, state = tx.update(grads, state, params, **given)
        return optax.apply_updates(params, updates), state

    state = jax.eval_shape(tx.init, params)
    step = jax.jit(step, donate_argnums=(0, 1))
    return step.lower(params, state, params, given)


def temporary(program):
    return program.memory_analysis().temp_size_in_bytes


def bytes_accessed(program):
    return program.cost_analysis()["bytes accessed"]
