"""Predicting the next token of long texts with a small Transformer."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from experiments.tasks import models
from experiments.tasks.task import WHOLE, Task, activations, at_least

EVALUATED_TOKENS = 12_288
"""Tokens predicted in an evaluation, of the training text and of the held-out one."""


def predict_next(
    config: ConfigDict,
    train: Sequence[np.ndarray],
    test: Sequence[np.ndarray],
    *,
    vocab: int,
    facts: Mapping[str, float | str],
) -> Task:
    """The task of predicting the next token, in nats a token.

    Training windows of `context` + 1 tokens start anywhere, drawn from (seed, step).
    Evaluation windows are fixed: evenly spread, and no token is predicted twice.

    Args:
        config: the task's section; uses `batch_size`, `context`, `width`, `depth`,
            `heads` and `dtype`.
        train: texts, integers [length] each, at least `context` + 1 tokens long.
        test: the held-out texts, as long.
        vocab: tokens are 0 .. vocab - 1.
        facts: the task's.

    Returns:
        The task; a batch is int32 [batch_size, context + 1].

    Raises:
        ValueError: if a size is out of range, or `heads` does not divide `width`.
    """
    batch_size = at_least(config, "batch_size", 1)
    context = at_least(config, "context", 1)
    width, heads = at_least(config, "width", 1), at_least(config, "heads", 1)
    if width % heads:
        raise ValueError(
            "config.task.width must be a multiple of config.task.heads, got"
            f" {width} and {heads}."
        )
    model = models.Transformer(
        vocab=vocab,
        context=context,
        width=width,
        depth=at_least(config, "depth", 1),
        heads=heads,
        dtype=activations(config),
    )
    choices = _number_of_windows(train, context + 1, stride=1)
    fixed = {
        "train": jnp.asarray(_evaluated_windows(train, context)),
        "test": jnp.asarray(_evaluated_windows(test, context)),
    }

    def init(key):
        return model.init(key, jnp.zeros((1, context), jnp.int32))["params"]

    def loss(params, windows):
        logits = model.apply({"params": params}, windows[:, :-1])
        # one-hot: the gradient of a gather is a scatter, slow on a CPU
        targets = jax.nn.one_hot(windows[:, 1:], vocab)
        return optax.softmax_cross_entropy(logits, targets).mean()

    def batches(seed, start, stop, part=WHOLE):
        # the numbers of all windows are drawn, and those of the part are read
        chosen = [
            np.random.default_rng([seed, step]).integers(choices, size=batch_size)[part]
            for step in range(start, stop)
        ]
        windows = _windows(train, context + 1, np.concatenate(chosen), stride=1)
        return windows.reshape(stop - start, -1, context + 1)

    def evaluate(params):
        def of_one(window):
            return loss(params, window[None])

        return {
            f"{name}_loss": jax.lax.map(of_one, windows, batch_size=32).mean()
            for name, windows in fixed.items()
        }

    return Task(
        init,
        loss,
        batches,
        evaluate,
        facts,
        examples=batch_size,
        tokens=batch_size * context,
    )


def _number_of_windows(texts, length, *, stride):
    return sum((len(text) - length) // stride + 1 for text in texts)


def _windows(texts, length, numbers, *, stride):
    """Windows by number, counted through all texts: int32 [len(numbers), length]."""
    in_text = [_number_of_windows([text], length, stride=stride) for text in texts]
    ends = np.cumsum(in_text)
    which = np.searchsorted(ends, numbers, side="right")
    offsets = (numbers - (ends - in_text)[which]) * stride
    windows = [
        texts[text][offset : offset + length]
        for text, offset in zip(which, offsets, strict=True)
    ]
    return np.stack(windows).astype(np.int32)


def _evaluated_windows(texts, context):
    # one token of overlap: the last of a window is predicted in it, read in the next
    there_are = _number_of_windows(texts, context + 1, stride=context)
    wanted = min(there_are, max(1, EVALUATED_TOKENS // context))
    numbers = np.arange(wanted) * there_are // wanted
    return _windows(texts, context + 1, numbers, stride=context)
