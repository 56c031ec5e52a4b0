"""A character language model on English text that comes with Python."""

import hashlib
import pydoc_data.topics

import numpy as np

from experiments.tasks import language
from experiments.tasks.task import Task


def char_lm(
    *,
    batch_size: int = 8,
    context: int = 64,
    width: int = 32,
    depth: int = 1,
    heads: int = 4,
    in_parts: bool = False,
    evaluated_tokens: int = 12_288,
) -> Task:
    """Predicts the next character of Python's documentation of its language.

    The text is `pydoc_data.topics`, joined in the order of its keys: nearly half a
    million characters, slightly different in each version of Python. The last tenth is
    held out.

    Args:
        batch_size: windows per update.
        context: the number of characters that the model reads before it predicts one.
        width: the width of the Transformer; a multiple of `heads`.
        depth: the number of blocks.
        heads: the number of attention heads.
        in_parts: whether the model is cut for pipelines, as in `predict_next`.
        evaluated_tokens: characters that an evaluation predicts, in the training text
            and in the held-out text each.

    Returns:
        The task. Its facts hold two bounds in nats per character: the entropy of single
        characters, and the entropy of a character given the character before it.

    Raises:
        ValueError: if `context` is longer than the held-out text.
    """
    topics = pydoc_data.topics.topics
    text = "\n".join(topics[key] for key in sorted(topics))
    characters, tokens = np.unique(list(text), return_inverse=True)
    train, test = np.split(tokens.astype(np.int32), [len(tokens) - len(tokens) // 10])
    if context >= len(test):
        raise ValueError(
            f"`context` must be below {len(test)}, the length of the held-out text, got"
            f" {context}."
        )
    singles = _entropy(tokens)
    return language.predict_next(
        [train],
        [test],
        vocab=len(characters),
        batch_size=batch_size,
        context=context,
        width=width,
        depth=depth,
        heads=heads,
        in_parts=in_parts,
        evaluated_tokens=evaluated_tokens,
        facts={
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "characters": len(text),
            "vocabulary": len(characters),
            "unigram_nats": singles,
            "bigram_nats": _entropy(tokens[:-1] * len(characters) + tokens[1:])
            - _entropy(tokens[:-1]),
        },
    )


def _entropy(symbols: np.ndarray) -> float:
    """-sum_s p(s) log p(s), in nats."""
    frequencies = np.unique(symbols, return_counts=True)[1] / len(symbols)
    return float(-(frequencies * np.log(frequencies)).sum())
