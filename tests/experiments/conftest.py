"""What several files of this folder need."""

import pytest


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The flag of one compilation cache for all runs."""
    return f"--compile_cache={tmp_path_factory.mktemp('compiled')}"
