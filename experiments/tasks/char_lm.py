"""A character language model on English text that comes with Python."""

import hashlib
import pydoc_data.topics
from typing import Unpack

import numpy as np

from experiments.tasks import language
from experiments.tasks.task import Task


def char_lm(*, context: int = 64, **options: Unpack[language.Options]) -> Task:
    """Predicts the next character of Python's documentation of its language.

    The text is `pydoc_data.topics`, joined in the order of its keys: nearly half a
    million characters, slightly different in each version of Python. The last tenth is
    held out.

    Args:
        context: the number of characters that the model reads before it predicts one.
        **options: as in `predict_next`; a token is a character.

    Returns:
        The task. Its facts hold two bounds in nats per character: the entropy of single
        characters, and the entropy of a character given the character before it.
    """
    topics = pydoc_data.topics.topics
    text = "\n".join(topics[key] for key in sorted(topics))
    characters, tokens = np.unique(list(text), return_inverse=True)
    train, test = np.split(tokens.astype(np.int32), [len(tokens) - len(tokens) // 10])
    singles = _entropy(tokens)
    return language.predict_next(
        [train],
        [test],
        vocab=len(characters),
        context=context,
        facts={
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "characters": len(text),
            "vocabulary": len(characters),
            "unigram_nats": singles,
            "bigram_nats": _entropy(tokens[:-1] * len(characters) + tokens[1:])
            - _entropy(tokens[:-1]),
        },
        **options,
    )


def _entropy(symbols: np.ndarray) -> float:
    """-sum_s p(s) log p(s), in nats."""
    frequencies = np.unique(symbols, return_counts=True)[1] / len(symbols)
    return float(-(frequencies * np.log(frequencies)).sum())
