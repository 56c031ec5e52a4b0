"""Token shards: their ends are held out, and only the needed tokens are read."""

import numpy as np
import pytest

from experiments import tasks
from experiments.tasks import language
from tests.experiments.tasks.small import TEXT
from tests.support.data_sets import write_shard


def test_the_end_of_every_shard_is_held_out(tmp_path, monkeypatch):
    shards = [np.arange(length) % 50 for length in (100, 1600, 5000)]
    for number, shard in enumerate(shards):
        write_shard(tmp_path / f"{number}.bin", shard)
    result = {}
    monkeypatch.setattr(
        language, "predict_next", lambda *texts, **kw: result.update(kw, texts=texts)
    )
    tasks.tokens(f"{tmp_path}/*.bin", vocab=50, **TEXT)
    train, test = result["texts"]
    assert [len(text) for text in test] == [17, 17, 50]  # one window, or 1 %
    for shard, begin, end in zip(shards, train, test, strict=True):
        both = np.concatenate([begin[: len(begin)], end[: len(end)]])
        np.testing.assert_array_equal(both, shard)
    sizes = {"train_tokens": 6700 - 84, "test_tokens": 84}
    assert result["facts"] == {"shards": 3} | sizes


class Recording(np.memmap):
    """A shard that records which parts are read."""

    read = ()

    def __getitem__(self, part):
        Recording.read += tuple((self.filename, i) for i in range(*part.indices(1000)))
        return super().__getitem__(part)


def test_of_shards_only_the_windows_that_are_used_are_read(tmp_path, monkeypatch):
    for number in range(8):
        write_shard(tmp_path / f"{number}.bin", np.arange(1000) % 50)
    monkeypatch.setattr(np, "memmap", Recording)
    monkeypatch.setattr(Recording, "read", ())
    task = tasks.tokens(f"{tmp_path}/*.bin", vocab=50, **TEXT, evaluated_tokens=16)
    evaluated = {shard for shard, _ in Recording.read}
    assert len(Recording.read) == 2 * 17 and len(evaluated) == 1
    Recording.read = ()
    task.batches(0, 0, 1, np.array([3, 5]))  # two of eight windows
    assert len(Recording.read) == 2 * 17
    assert len({shard for shard, _ in Recording.read}) <= 2


@pytest.mark.parametrize("place", [0, 1, 500, 966, 982])
def test_a_token_beyond_the_vocabulary_is_refused_as_it_is_read(tmp_path, place):
    """A window has 17 tokens; the windows at 0 and 983 are evaluated."""
    numbers = np.zeros(1000)
    numbers[[place, 999]] = 65_535, 16
    evaluated = place < 17
    path = write_shard(tmp_path / "big.bin", numbers)
    message = rf"{path} holds the token %s at position %s, but `vocab` is 16: .*=%s or"
    sizes = TEXT | dict(evaluated_tokens=16)
    with pytest.raises(
        ValueError,
        match=message % ((65_535, place, 65_536) if evaluated else (16, 999, 17)),
    ):
        tasks.tokens(str(path), vocab=16, **sizes)
    numbers[999] = 0
    write_shard(path, numbers)
    if evaluated:
        return
    task = tasks.tokens(str(path), vocab=16, **sizes)
    with pytest.raises(ValueError, match=message % (65_535, place, 65_536)):
        task.batches(0, 0, 1000)
    tasks.tokens(str(path), vocab=65_536, **sizes).batches(0, 0, 1000)
