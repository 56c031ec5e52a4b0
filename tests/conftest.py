import importlib.metadata
import os

# Most of the tests' time is compiling to machine code. Its optimization, its split into
# parts and, in the oldest supported JAX, the new emitters of fusions take two thirds of
# that time. XLA's own passes stay, and with them the buffers that tests look at.
flags = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if importlib.metadata.version("jaxlib").startswith("0.10."):
    flags += " --xla_cpu_use_fusion_emitters=false"  # later versions do not know it
os.environ.setdefault("XLA_FLAGS", flags)

import jax

# before any device is touched: several devices in one process
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
