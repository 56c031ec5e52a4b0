"""Any Flax model, Linen or nnx, as two functions of its parameters."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from flax import nnx as flax_nnx


class Network(NamedTuple):
    """The functions of a model that a task needs.

    `state` holds what a model keeps but does not train, such as BatchNorm's statistics;
    it is () if the model has none.
    """

    init: Callable[[jax.Array, Any], tuple[Any, Any]]  # key, inputs -> params, state
    # params, state, inputs -> outputs, in evaluation
    predict: Callable[[Any, Any, Any], Any]
    # params, state, inputs, key -> (outputs, next state), in training
    train: Callable[[Any, Any, Any, jax.Array], tuple[Any, Any]]
    trains_apart: bool  # whether `train` differs from `predict`: dropout, statistics


def linen(model: nn.Module) -> Network:
    """A `flax.linen` module.

    A module with BatchNorm or dropout takes `train: bool`; dropout draws from the
    stream "dropout".
    """
    takes_train = "train" in inspect.signature(model.__call__).parameters

    def option(value):
        return {"train": value} if takes_train else {}

    def init(key, inputs):
        variables = dict(model.init({"params": key}, inputs, **option(False)))
        params = variables.pop("params")
        return params, variables or ()

    def predict(params, state, inputs):
        return model.apply({"params": params, **_dict(state)}, inputs, **option(False))

    def train(params, state, inputs, key):
        outputs, after = model.apply(
            {"params": params, **_dict(state)},
            inputs,
            **option(True),
            rngs={"dropout": key},
            mutable=list(_dict(state)),
        )
        return outputs, after or ()

    return Network(init, predict, train, takes_train)


def nnx(make: Callable[[flax_nnx.Rngs], flax_nnx.Module]) -> Network:
    """A `flax.nnx` module; `make` builds it from its `Rngs`."""
    kept = flax_nnx.Not(flax_nnx.Any(flax_nnx.Param, flax_nnx.RngState))

    def module(key, params, state):
        made = make(flax_nnx.Rngs(key))  # the values replaced below are never computed
        flax_nnx.update(made, params)
        flax_nnx.update(made, _dict(state))
        return made

    def parts(made):
        params, state = (flax_nnx.state(made, kind) for kind in (flax_nnx.Param, kept))
        pure = flax_nnx.to_pure_dict
        return pure(params), pure(state) or ()

    def init(key, inputs):
        return parts(make(flax_nnx.Rngs(key)))

    def predict(params, state, inputs):
        made = module(jax.random.key(0), params, state)
        made.eval()
        return made(inputs)

    def train(params, state, inputs, key):
        made = module(key, params, state)
        made.train()
        return made(inputs), parts(made)[1]

    def has_others():
        made = make(flax_nnx.Rngs(0))
        others = flax_nnx.Not(flax_nnx.Param)
        return jax.tree.leaves(flax_nnx.state(made, others))

    return Network(init, predict, train, bool(jax.eval_shape(has_others)))


def _dict(state: Any) -> dict[str, Any]:
    return state or {}
