import importlib.metadata
import os

# Most of the tests' time is compiling to machine code. Its optimization, its split into
# parts and, in JAX 0.10, the emitters of fusions (later versions have no such flag) take
# half of that time. XLA's own passes stay, and with them the buffers that tests look at.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false"
    * importlib.metadata.version("jaxlib").startswith("0.10."),
)

import jax

# before any device is touched: several devices in one process
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
