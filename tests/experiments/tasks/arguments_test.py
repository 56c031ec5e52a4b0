"""Options of tasks that cannot be: each is named, with its value or the remedy."""

import math

import numpy as np
import pytest

from experiments import tasks
from experiments.tasks import batches

REFUSED = [
    ("digits_mlp", dict(width=0), r"`width` must be at least 1, got 0"),
    ("digits_mlp", dict(depth=-1), r"`depth` must be at least 0, got -1"),
    ("digits_mlp", dict(batch_size=-1), r"must lie in 0 \.\. 1348.* -1"),
    ("digits_mlp", dict(batch_size=1349), r"lie in 0 \.\. 1348.*got 1349"),
    ("breast_cancer", dict(batch_size=500), r"`batch_size` must lie in 0 \.\. 427"),
    ("char_lm", dict(heads=0), r"`heads` must be at least 1"),
    ("char_lm", dict(depth=0), r"`depth` must be at least 1"),
    ("char_lm", dict(batch_size=0), r"`batch_size` must be at least 1, got 0"),
    ("char_lm", dict(evaluated_tokens=0), r"`evaluated_tokens` must be at least"),
    ("char_lm", dict(context=0), r"`context` must be at least 1, got 0"),
    ("tokens", dict(context=2000), r"0\.bin has 3000 tokens, but needs 4002"),
    ("tokens", dict(dtype="int8"), r"`dtype` must be 'float32' or .*got 'int8'"),
    ("tfds", dict(batch_size=0), r"`batch_size` must be at least 1, got 0"),
    ("tfds", dict(image_size=31), r"`image_size` must be at least 32, got 31"),
    ("tfds", dict(worker_processes=-1), r"`worker_processes` must be at least 0"),
    ("tfds", dict(dtype="float16"), r"`dtype` must be 'float32' or .*'float16'"),
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_bad_options_are_refused(make, name, options, message):
    with pytest.raises(ValueError, match=message):
        make(name, **options)


def test_a_shard_with_half_a_token_is_refused(tmp_path):
    (tmp_path / "odd.bin").write_bytes(bytes(1001))
    with pytest.raises(ValueError, match=r"odd\.bin has 1001 bytes, an odd number"):
        tasks.tokens(f"{tmp_path}/*.bin", vocab=16)


@pytest.mark.parametrize(
    ("workers", "concentration"), [(3, 0.0), (3, math.nan), (31, 1.0), (0, 1.0)]
)
def test_a_split_that_cannot_be_is_refused(workers, concentration):
    with pytest.raises(ValueError, match=r"`(concentration|workers)` must be"):
        batches.dirichlet(
            np.zeros(30, int), workers, concentration=concentration, seed=0
        )
