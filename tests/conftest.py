import atexit
import contextlib
import ctypes
import gc
import importlib.metadata
import os
import pathlib
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

# No test reads where in Python an operation was written; writing it takes 3 %.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

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
import pytest

# before any device is touched: several devices in one process
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")

# tracing makes many objects that live: looking for garbage less often saves 4 %
gc.freeze()
gc.set_threshold(200_000, 20, 100)


class Memory:
    """Gives back, after a file, what tests compiled, if the process holds 1 GiB.

    Most files compile the same small operations, which takes half a second each time.
    A plugin, and no hook of this file, which would see the tests of this folder alone
    and no examples of pages and docstrings.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item, nextitem):
        """After the fixtures of the file have ended."""
        result = yield
        is_last = nextitem is None or nextitem.path != item.path
        if is_last and resident() > 2**30:
            jax.clear_caches()
            give_back()
        return result

    def pytest_unconfigure(self):
        """The process ends without a last search for garbage, which takes seconds."""
        gc.freeze()


class PagesOfTheRunner:
    """Marks the pages whose examples train by the runner: they are whole runs."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        """Before pytest leaves out what has a mark."""
        for item in items:
            if item.path.suffix == ".md" and ">>> from experiments" in (
                item.path.read_text("utf-8")
            ):
                item.add_marker("runs")


def resident():
    """The bytes of memory that this process holds; infinite where Linux is not."""
    with contextlib.suppress(OSError):
        pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return float("inf")


def give_back():
    """Hands free memory back to the system, where the allocator is glibc's."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def pytest_configure(config):
    """Registers what sees all tests."""
    config.pluginmanager.register(Memory())
    config.pluginmanager.register(PagesOfTheRunner())
