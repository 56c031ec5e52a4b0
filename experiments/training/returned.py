"""Checks of the results of a rule's `update`, where a training is traced."""

import traceback
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
            if not _is_of_a_wrapper(error) or "unpack" not in str(error):
                raise
            raise TypeError(f"{_PAIR}, but its wrapper got {error}.") from error
        several = isinstance(returned, (tuple, list))
        if not several or len(returned) != 2:
            got = f"{len(returned)} values" if several else type(returned).__name__
            raise TypeError(f"{_PAIR}, got {got}.")
        moves, after = returned
        _check("updates like the parameters", moves, updates, _kind)
        _check("a state like the state it gets", after, state, lambda leaf: leaf.dtype)
        return moves, after

    return rule._replace(update=update)


def _is_of_a_wrapper(error: Exception) -> bool:
    """Whether a line of Optax or of delayjax raises the error, not a line of a rule."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    package = frame.f_globals["__name__"].partition(".")[0]
    return package in ("optax", "delayjax")


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
    structures = [jax.tree.structure(one) for one in (tree, like)]
    if wrong or structures[0] != structures[1]:

        def shown(one, where):
            if where not in one:
                return "nothing"
            shape, _, leaf = one[where]
            return f"{leaf.dtype}{list(shape)}"

        def differs(where):
            at = where or "the root"
            return f"{shown(got, where)} for {shown(wanted, where)} at {at}"

        # the first leaf that is wrong, and the first leaf that should not be there
        first = dict.fromkeys([*wrong[:1], *(p for p in got if p not in wanted)][:2])
        said = " and ".join(map(differs, first)) or "{} for {}".format(*structures)
        raise TypeError(f"`update` of a rule must return {what}, got {said}.")
