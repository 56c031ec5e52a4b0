"""A Transformer cut into the parts of a pipeline, with its blocks stacked."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import delayjax as dj
from experiments.tasks import models


def parts_of(
    model: models.Transformer, mean_loss: Callable[..., jax.Array]
) -> dj.pipelines.Parts:
    """The parts of a model that predicts the next token of windows.

    The first stage of a pipeline has the embeddings of tokens and of positions. The
    last stage has the last normalization and the logits' matrix, which is not tied to
    the embedding because the embedding is on another stage.

    Args:
        model: the model; its blocks are the layers.
        mean_loss: (logits [B, context, vocab], windows int32 [B, context + 1]) -> its
            mean over the windows.
    """
    tokens = nn.Embed(model.vocab, model.width, dtype=model.dtype)
    places = nn.Embed(model.context, model.width, dtype=model.dtype)
    block = models.TransformerBlock(model.heads, model.dtype)
    norm = nn.LayerNorm(dtype=model.dtype)

    def embed(params, windows, key):
        seen = windows[:, :-1]
        x = tokens.apply({"params": params["tokens"]}, seen)
        numbers = jnp.arange(seen.shape[1])
        return x + places.apply({"params": params["places"]}, numbers)[None]

    @jax.jit  # all layers have the same block: trace it once
    def one_block(params, x, key):
        return block.apply({"params": params}, x)

    def head(params, x, windows):
        x = norm.apply({"params": params["norm"]}, x)
        return mean_loss(models.logits(x, params["logits"]["embedding"]), windows)

    return dj.pipelines.Parts(embed, one_block, head)


def matrices(params: Any) -> Any:
    """Selects the leaves that Muon trains: the matrices of the blocks.

    Returns:
        `muon_weight_dimension_numbers` of `optax.contrib.muon`, for the parameters of a
        stage as its optimizer sees them. Its Adam trains all other leaves.
    """
    matrix = optax.contrib.MuonDimensionNumbers()

    def numbers(path, leaf):
        return matrix if path[0].key == "blocks" and leaf.ndim == 2 else None

    return jax.tree.map_with_path(numbers, params)


def cut(params: Any) -> dict[str, Any]:
    """Rearranges the parameters of a `Transformer` for its parts; logits are the same.

    Returns:
        {"embed", "blocks", "head"}: leaves of blocks are [depth, ...]. The logits'
        matrix begins as a copy of the embedding.
    """
    depth = sum(name.startswith("TransformerBlock_") for name in params)
    blocks = [params[f"TransformerBlock_{layer}"] for layer in range(depth)]
    head = {"norm": params["LayerNorm_0"], "logits": params["Embed_0"]}
    return {
        "embed": {"tokens": params["Embed_0"], "places": params["Embed_1"]},
        "blocks": jax.tree.map(lambda *layers: jnp.stack(layers), *blocks),
        "head": jax.tree.map(jnp.copy, head),
    }
