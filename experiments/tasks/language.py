"""A small Transformer that predicts the next token of long texts."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from experiments.tasks import classification, models, stacked
from experiments.tasks.task import WHOLE, Task, activations, at_least


class Options(TypedDict, total=False):
    """The options of `predict_next` that every language model has."""

    batch_size: int
    width: int
    depth: int
    heads: int
    dtype: str
    in_parts: bool
    evaluated_tokens: int


def predict_next(
    train: Sequence[np.ndarray],
    test: Sequence[np.ndarray],
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
    facts: Mapping[str, float | str] | None = None,
) -> Task:
    """The task of predicting the next token; its loss is in nats per token.

    Training windows of `context` + 1 tokens start at random places, drawn from (seed,
    step). Evaluation windows are fixed and evenly spaced; no token is predicted twice.

    Args:
        train: texts, integers [length] each, at least `context` + 1 tokens long.
        test: the held-out texts, of at least the same length.
        vocab: tokens are 0 .. vocab - 1.
        batch_size: windows per update.
        context: the number of tokens that the model reads before it predicts one.
        width: the width of the Transformer; a multiple of `heads`.
        depth: the number of blocks.
        heads: the number of attention heads.
        dtype: "float32" or "bfloat16", for activations and products.
        in_parts: whether the model is cut into the parts of a pipeline, see
            `stacked.parts_of`: the parameters are {"embed", "blocks", "head"}, and the
            logits' matrix is not tied to the embedding.
        evaluated_tokens: tokens that an evaluation predicts, in the training text and
            in the held-out text each.
        facts: the facts of the task, beside the unit of the loss.

    Returns:
        The task; a batch is int32 [batch_size, context + 1].

    Raises:
        ValueError: if a size is out of range, or `heads` does not divide `width`.
    """
    sizes = dict(batch_size=batch_size, context=context, width=width, depth=depth)
    sizes |= dict(heads=heads, evaluated_tokens=evaluated_tokens)
    for name, value in sizes.items():
        at_least(name, value, 1)
    if width % heads:
        raise ValueError(
            f"`width` must be a multiple of `heads`, got {width} and {heads}."
        )
    model = models.Transformer(
        vocab=vocab,
        context=context,
        width=width,
        depth=depth,
        heads=heads,
        dtype=activations(dtype),
    )
    choices = _number_of_windows(train, context + 1, stride=1)
    fixed = {
        "train": jnp.asarray(_evaluated(train, context, evaluated_tokens)),
        "test": jnp.asarray(_evaluated(test, context, evaluated_tokens)),
    }

    parts = stacked.parts_of(model, _mean_loss) if in_parts else None

    def init(key):
        params = model.init(key, jnp.zeros((1, context), jnp.int32))["params"]
        return stacked.cut(params) if in_parts else params

    def loss(params, windows):
        if parts is not None:
            return parts.loss(params, windows)
        logits = model.apply({"params": params}, windows[:, :-1])
        return _mean_loss(logits, windows)

    def batches(seed, start, stop, part=WHOLE):
        # draws the indices of all windows, but reads only the windows of the part
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
        {"loss_unit": "nats", **(facts or {})},
        examples=batch_size,
        parts=parts,
    )


def _mean_loss(logits: jax.Array, windows: jax.Array) -> jax.Array:
    """Of logits [B, n, vocab] on windows int32 [B, n + 1], in nats."""
    return classification.cross_entropy(logits, windows[:, 1:]).mean()


def _number_of_windows(texts, length, *, stride):
    return sum((len(text) - length) // stride + 1 for text in texts)


def _windows(texts, length, numbers, *, stride):
    """The windows of these indices, counted over all texts: int32 [n, length]."""
    in_text = [_number_of_windows([text], length, stride=stride) for text in texts]
    ends = np.cumsum(in_text)
    which = np.searchsorted(ends, numbers, side="right")
    offsets = (numbers - (ends - in_text)[which]) * stride
    windows = [
        texts[text][offset : offset + length]
        for text, offset in zip(which, offsets, strict=True)
    ]
    return np.stack(windows).astype(np.int32)


def _evaluated(texts, context, tokens):
    # windows overlap by one token: the last token of a window is predicted there and
    # is the first that the next window reads
    available = _number_of_windows(texts, context + 1, stride=context)
    wanted = min(available, max(1, tokens // context))
    numbers = np.arange(wanted) * available // wanted
    return _windows(texts, context + 1, numbers, stride=context)
