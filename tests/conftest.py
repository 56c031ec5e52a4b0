import os

# Most of the tests' time is compiling. LLVM's optimization takes a third of it; without
# it, what XLA's own passes make of a program is the same.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax

# before any device is touched: several devices in one process
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
