"""A language model on token shards of your own."""

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
    evaluated_tokens: int = 12_288,
) -> Task:
    """The next token of your own text: files of little-endian uint16 numbers.

    Shards are taken in the order of their names and memory-mapped; they are read once
    here, to check their numbers. The last hundredth of each shard, or one window of
    `context` + 1 tokens where that is more, is held out.

    Args:
        pattern: a path of the shards, or a pattern like "/data/*.bin".
        vocab: tokens are 0 .. vocab - 1.
        batch_size: windows an update.
        context: tokens that are read before one is predicted.
        width: of the Transformer; a multiple of `heads`.
        depth: blocks.
        heads: attention heads.
        dtype: "float32" or "bfloat16", of activations and products.
        evaluated_tokens: predicted in an evaluation, of the training text and of the
            held-out one.

    Returns:
        The task.

    Raises:
        FileNotFoundError: if no file matches.
        ValueError: if a shard is no row of uint16, is too short, or holds a token that
            is not below `vocab`.
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
    shards = [_open(path, window, vocab) for path in paths]
    cuts = [len(shard) - max(len(shard) // 100, window) for shard in shards]
    train = [shard[:cut] for shard, cut in zip(shards, cuts, strict=True)]
    test = [shard[cut:] for shard, cut in zip(shards, cuts, strict=True)]
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
        evaluated_tokens=evaluated_tokens,
        facts={
            "shards": len(shards),
            "train_tokens": sum(map(len, train)),
            "test_tokens": sum(map(len, test)),
        },
    )


def _open(path: str, window: int, vocab: int) -> np.ndarray:
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
    shard = np.memmap(path, "<u2", mode="r")
    if (largest := int(shard.max())) >= vocab:
        raise ValueError(
            f"{path} holds the token {largest}, but `vocab` is {vocab}: tokens must be"
            f" below it. Take vocab={largest + 1} or more."
        )
    return shard
