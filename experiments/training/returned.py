"""Checks of the results of a rule's `update`, where a training is traced."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

_PAIR = "`update` of a rule must return the pair (updates, state)"


def checked(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """The rule, whose `update` refuses to return something else than it should.

    Optax adds any updates that broadcast to the parameters: a rule that returns one
    number for a whole array would train something else, without a word.
    """
    if isinstance(getattr(rule.update, "__self__", None), optax.MultiSteps):
        return rule  # wrappers find extra arguments by its method

    def update(updates, state, *more, **extra_args):
        try:
            returned = rule.update(updates, state, *more, **extra_args)
        except (TypeError, ValueError) as error:
            if "unpack" not in str(error):
                raise
            raise TypeError(f"{_PAIR}, got another number of values.") from error
        several = isinstance(returned, (tuple, list))
        if not several or len(returned) != 2:
            got = f"{len(returned)} values" if several else type(returned).__name__
            raise TypeError(f"{_PAIR}, got {got}.")
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

    def kinds(tree):
        leaves = jax.tree.leaves_with_path(jax.tree.map(jax.typeof, tree))
        return {jax.tree_util.keystr(p): (x.shape, kind(x), x) for p, x in leaves}

    got, wanted = kinds(tree), kinds(like)
    paths = dict.fromkeys([*wanted, *got])
    wrong = [p for p in paths if got.get(p, (None,))[:2] != wanted.get(p, (None,))[:2]]
    if wrong or jax.tree.structure(tree) != jax.tree.structure(like):
        where = wrong[0] if wrong else ""
        there, here = (
            f"{one[where][2].dtype}{list(one[where][0])}" if where in one else "nothing"
            for one in (got, wanted)
        )
        raise TypeError(
            f"`update` of a rule must return {what}, got {there} for {here} at"
            f" {where or 'the root'}."
        )
