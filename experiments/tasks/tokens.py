"""A language model on token shards of your own."""

import glob
import os

import numpy as np
from ml_collections import ConfigDict

from experiments.tasks import language
from experiments.tasks.task import Task, at_least


def make(config: ConfigDict) -> Task:
    """The next token of `tokens:PATTERN`, files of little-endian uint16 numbers.

    Shards are taken in the order of their names and memory-mapped; they are read once
    here, to check their numbers. The last hundredth of each shard, or one window of
    `context` + 1 tokens where that is more, is held out.

    Args:
        config: the task's section; `vocab` bounds the tokens. See
            `language.predict_next`.

    Returns:
        The task.

    Raises:
        FileNotFoundError: if no file matches.
        ValueError: if a shard is no row of uint16, is too short, or holds a token that
            is not below `vocab`.
    """
    pattern = os.path.expanduser(config.name.partition(":")[2])
    window = at_least(config, "context", 1) + 1
    vocab = at_least(config, "vocab", 1)
    paths = sorted(glob.glob(pattern))
    if not paths:
        raise FileNotFoundError(
            f"config.task.name: no file matches {pattern!r}. Name the shards by a path"
            " or a pattern, as in tokens:/data/*.bin."
        )
    shards = [_open(path, window, vocab) for path in paths]
    cuts = [len(shard) - max(len(shard) // 100, window) for shard in shards]
    train = [shard[:cut] for shard, cut in zip(shards, cuts, strict=True)]
    test = [shard[cut:] for shard, cut in zip(shards, cuts, strict=True)]
    return language.predict_next(
        config,
        train,
        test,
        vocab=vocab,
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
            f" a held-out window of config.task.context + 1 = {window}: shorten the"
            " context or join shards."
        )
    shard = np.memmap(path, "<u2", mode="r")
    if (largest := int(shard.max())) >= vocab:
        raise ValueError(
            f"{path} holds the token {largest}, but config.task.vocab is {vocab}:"
            " tokens must be below it. Set"
            f" --config.task.vocab={largest + 1} or more."
        )
    return shard
