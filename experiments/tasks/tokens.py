"""A language model on token shards of the user."""

import dataclasses
import glob
import os
from typing import Unpack

import numpy as np

from experiments.tasks import language
from experiments.tasks.task import Task, at_least


def tokens(
    pattern: str, *, vocab: int, context: int = 64, **options: Unpack[language.Options]
) -> Task:
    """Predicts the next token of text in files of little-endian uint16 numbers.

    Shards are memory-mapped, in the order of their names. A process reads and checks
    only the windows of its workers and the windows to evaluate. The last hundredth of
    each shard is held out, or one window of `context` + 1 tokens if that is more.

    Args:
        pattern: the path of a shard, or a pattern like "/data/*.bin".
        vocab: tokens are 0 .. vocab - 1.
        context: the number of tokens that the model reads before it predicts one.
        **options: as in `predict_next`.

    Returns:
        The task.

    Raises:
        FileNotFoundError: if no file matches.
        ValueError: if a shard is not a sequence of uint16 or is too short; here, or
            later in `batches`, if a window holds a token that is not below `vocab`.
    """
    at_least("context", context, 1)
    at_least("vocab", vocab, 1)
    pattern = os.path.expanduser(pattern)
    window = context + 1
    paths = sorted(glob.glob(pattern))
    if not paths:
        raise FileNotFoundError(
            f"`pattern`: no file matches {pattern!r}. Name the shards by a path or a"
            " pattern, as in /data/*.bin."
        )
    shards = [_open(path, window) for path in paths]
    train, test = [], []
    for path, shard in zip(paths, shards, strict=True):
        cut = len(shard) - max(len(shard) // 100, window)
        train.append(_Text(path, shard, 0, cut, vocab))
        test.append(_Text(path, shard, cut, len(shard), vocab))
    return language.predict_next(
        train,
        test,
        vocab=vocab,
        context=context,
        facts={
            "shards": len(shards),
            "train_tokens": sum(map(len, train)),
            "test_tokens": sum(map(len, test)),
        },
        **options,
    )


@dataclasses.dataclass(frozen=True)
class _Text:
    """Tokens begin .. end - 1 of a shard, checked when they are read."""

    path: str
    shard: np.ndarray
    begin: int
    end: int
    vocab: int

    def __len__(self):
        return self.end - self.begin

    def __getitem__(self, part: slice) -> np.ndarray:
        first, last, _ = part.indices(len(self))
        read = np.asarray(self.shard[self.begin + first : self.begin + last])
        beyond = np.flatnonzero(read >= self.vocab)
        if len(beyond):
            place = beyond[0]
            raise ValueError(
                f"{self.path} holds the token {read[place]} at position"
                f" {self.begin + first + place}, but `vocab` is {self.vocab}: tokens"
                f" must be below it. Take vocab={int(read.max()) + 1} or more."
            )
        return read


def _open(path: str, window: int) -> np.ndarray:
    size = os.path.getsize(path)
    if size % 2:
        raise ValueError(
            f"{path} has {size} bytes, an odd number: a shard is a sequence of uint16,"
            " as written by numpy's `tokens.astype('<u2').tofile(path)`."
        )
    if size // 2 < 2 * window:
        raise ValueError(
            f"{path} has {size // 2} tokens, but needs {2 * window} for a training and"
            f" a held-out window of `context` + 1 = {window}: shorten the context or"
            " join shards."
        )
    return np.memmap(path, "<u2", mode="r")
