"""Objects and functions that are pickled as the call that made them."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from delayjax._src.ground import kinds

P = ParamSpec("P")
T = TypeVar("T")
_RECIPE = "_recipe"  # the attribute of an object that holds (function, args, kwargs)


def remembered(make: Callable[P, T]) -> Callable[P, T]:
    """Checks the arguments of `make`, and makes its result picklable if they are."""
    make = kinds.checked(make)

    @functools.wraps(make)
    def remembering(*args: P.args, **kwargs: P.kwargs) -> Any:
        made: Any = make(*args, **kwargs)
        made = made if isinstance(made, Pickled) else _Function(made)
        object.__setattr__(made, _RECIPE, (remembering, args, kwargs))
        return made

    return remembering


class Pickled:
    """An object that is unpickled by its recipe: the call that made it."""

    def __reduce__(self):
        """The call that makes the object."""
        recipe = getattr(self, _RECIPE, None)
        if recipe is None:
            return super().__reduce__()
        return (_cook, recipe)


class _Function(Pickled):
    """A function with a recipe."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self.__doc__ = function.__doc__

    def __call__(self, *args, **kwargs):
        return self._function(*args, **kwargs)

    def __repr__(self):
        """The call that makes the function."""
        make, args, kwargs = getattr(self, _RECIPE)
        given = [*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())]
        return f"{make.__name__}({', '.join(given)})"


def _cook(make: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
    return make(*args, **kwargs)
