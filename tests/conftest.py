import atexit
import gc
import importlib.metadata
import os
import shutil
import tempfile

# Most of the tests' time is compiling to machine code. Half of that time is for its
# optimization, its split into parts and, in JAX 0.10 (later versions lack the flag),
# the emitters of fusions. The buffers, which tests look at, stay as they are.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false"
    * importlib.metadata.version("jaxlib").startswith("0.10."),
)

# Tests compile the same small programs over and over, in several processes: they share
# what is compiled, in a folder that the first process makes and removes.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    compiled = tempfile.mkdtemp(prefix="delayjax_tests_")
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": compiled,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)

import jax

# before any device is touched: several devices in one process
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")

# tracing makes many objects that live: looking for garbage less often saves 4 %
gc.freeze()
gc.set_threshold(200_000, 20, 100)
