"""Checks of the results of a rule's `update`, where a training is traced."""

from typing import Any

import jax
import jax.numpy as jnp
import optax


def checked(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """The rule, whose `update` refuses to return something else than it should.

    Optax adds any updates that broadcast to the parameters: a rule that returns one
    number for a whole array would train something else, without a word.
    """
    if isinstance(getattr(rule.update, "__self__", None), optax.MultiSteps):
        return rule  # wrappers find extra arguments by its method

    def update(updates, state, *more, **extra_args):
        returned = rule.update(updates, state, *more, **extra_args)
        several = isinstance(returned, (tuple, list))
        if not several or len(returned) != 2:
            got = f"{len(returned)} values" if several else type(returned).__name__
            raise TypeError(
                f"`update` of a rule must return the pair (updates, state), got {got}."
            )
        moves, after = returned
        _check("updates like the parameters", moves, updates, _kind)
        _check("a state like the state it gets", after, state, lambda leaf: leaf.dtype)
        return moves, after

    return rule._replace(update=update)


def _kind(leaf: Any) -> str:
    """The kind of a dtype: the sum with the parameters has their dtype."""
    kinds = {"real": jnp.floating, "complex": jnp.complexfloating}
    names = [name for name, kind in kinds.items() if jnp.issubdtype(leaf.dtype, kind)]
    return names[0] if names else str(leaf.dtype)


def _check(what: str, tree: Any, like: Any, kind: Any) -> None:
    """Checks that two trees have the same structure, shapes and kinds of dtypes."""

    def leaves(tree):
        named = jax.tree.leaves_with_path(jax.tree.map(jax.typeof, tree))
        return {jax.tree_util.keystr(path): leaf for path, leaf in named}

    def form(leaf):
        return None if leaf is None else (leaf.shape, kind(leaf))

    def shown(leaf):
        return "nothing" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"

    got, wanted = leaves(tree), leaves(like)
    pairs = {p: (got.get(p), wanted.get(p)) for p in [*wanted, *got]}
    structures = [jax.tree.structure(one) for one in (tree, like)]
    wrong = [p for p, (one, other) in pairs.items() if form(one) != form(other)]
    if wrong or structures[0] != structures[1]:
        said = "{} for {}".format(*structures)
        if wrong:
            said = "{} for {}".format(*map(shown, pairs[wrong[0]]))
            said += f" at {wrong[0] or 'the root'}"
        raise TypeError(f"`update` of a rule must return {what}, got {said}.")
