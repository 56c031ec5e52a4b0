"""Packages of extras: without one, its tests are skipped, except in the extra's job."""

import importlib.util
import os
from types import ModuleType

import pytest

EXTRA = os.environ.get("DELAYJAX_EXTRA")  # the extra of this job, if it has one


def is_missing(package: str, extra: str) -> bool:
    """Whether tests that need the package are skipped."""
    return importlib.util.find_spec(package) is None and extra != EXTRA


def import_or_skip(package: str, extra: str) -> ModuleType:
    """The package of an extra; without it, the module that calls is skipped."""
    if is_missing(package, extra):
        reason = f"{package} is an extra: delayjax[{extra}]"
        pytest.skip(reason, allow_module_level=True)
    return importlib.import_module(package)


needs_libtpu = pytest.mark.skipif(
    is_missing("libtpu", "tpu"),
    reason="libtpu is not installed: pip install -e '.[tpu]'",
)
needs_cuda = pytest.mark.skipif(
    is_missing("jax_cuda13_plugin", "cuda"),
    reason="JAX's plugin for CUDA is not installed: pip install -e '.[cuda]'",
)
