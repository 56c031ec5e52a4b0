"""A language model on token shards of your own."""

import dataclasses
import glob
import os

import numpy as np

from experiments.tasks import language
from experiments.tasks.task import Task, at_least


def tokens(
    pattern: str,
    *,
    vocab: int,
    batch_size: int = 8,
    context: int = 64,
    width: int = 32,
    depth: int = 1,
    heads: int = 4,
    dtype: str = "float32",
    in_parts: bool = False,
    evaluated_tokens: int = 12_288,
) -> Task:
    """The next token of your own text: files of little-endian uint16 numbers.

    Shards are taken in the order of their names and memory-mapped: of a shard a process
    reads the windows of its own workers alone, beside those evaluated, and checks what
    it reads. The last hundredth of each shard, or one window of `context` + 1 tokens
    where that is more, is held out.

    Args:
        pattern: a path of the shards, or a pattern like "/data/*.bin".
        vocab: tokens are 0 .. vocab - 1.
        batch_size: windows an update.
        context: tokens that are read before one is predicted.
        width: of the Transformer; a multiple of `heads`.
        depth: blocks.
        heads: attention heads.
        dtype: "float32" or "bfloat16", of activations and products.
        in_parts: whether the model is cut for pipelines, as in `predict_next`.
        evaluated_tokens: predicted in an evaluation, of the training text and of the
            held-out one.

    Returns:
        The task.

    Raises:
        FileNotFoundError: if no file matches.
        ValueError: if a shard is no row of uint16 or is too short; there, or later in
            `batches`, if a window is read with a token that is not below `vocab`.
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
        batch_size=batch_size,
        context=context,
        width=width,
        depth=depth,
        heads=heads,
        dtype=dtype,
        in_parts=in_parts,
        evaluated_tokens=evaluated_tokens,
        facts={
            "shards": len(shards),
            "train_tokens": sum(map(len, train)),
            "test_tokens": sum(map(len, test)),
        },
    )


@dataclasses.dataclass(frozen=True)
class _Text:
    """Tokens begin .. end - 1 of a shard, checked as they are read."""

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
            f"{path} has {size} bytes, an odd number: a shard is a row of uint16, as"
            " written by numpy's `tokens.astype('<u2').tofile(path)`."
        )
    if size // 2 < 2 * window:
        raise ValueError(
            f"{path} has {size // 2} tokens, and needs {2 * window} for a training and"
            f" a held-out window of `context` + 1 = {window}: shorten the context or"
            " join shards."
        )
    return np.memmap(path, "<u2", mode="r")
