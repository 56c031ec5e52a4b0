"""Programs as users compile them, in spite of the flags of tests/conftest.py.

For tests that look for one of XLA's operations, and for programs that run for seconds.
"""

import importlib.metadata

AS_USUAL = {"xla_backend_optimization_level": 3}
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # without them XLA makes loops of scatters
    AS_USUAL["xla_cpu_use_fusion_emitters"] = True


def compile_as_usual(lowered):
    """The compiled program."""
    return lowered.compile(compiler_options=AS_USUAL)
