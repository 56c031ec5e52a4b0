"""Programs as users compile them, for tests that look for one of XLA's operations."""

import importlib.metadata

OPTIONS = {}
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # tests/conftest.py turns them off; without them XLA makes loops of scatters
    OPTIONS["xla_cpu_use_fusion_emitters"] = True


def compile_as_usual(lowered):
    """The compiled program."""
    return lowered.compile(compiler_options=OPTIONS)
