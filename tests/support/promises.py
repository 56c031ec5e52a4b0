"""Promises that all rows of a table keep; one test for each row checks all of them."""

import functools
from collections.abc import Callable, Collection
from typing import Any

import pytest


class Promises(dict):
    """{promise: (a check, which takes the name of a row; the rows that promise it)}."""

    def of(self, rows: Collection[str]) -> Callable:
        """Adds the function below, whose name is the promise, for these rows."""

        def added(check: Callable[[str], None]) -> Callable[[str], None]:
            self[check.__name__.replace("_", " ")] = check, rows
            return check

        return added

    def require(self, name: str) -> None:
        """Checks all promises of a row, and reports those that fail."""
        all_hold(
            {
                words: functools.partial(check, name)
                for words, (check, rows) in self.items()
                if name in rows
            }
        )


def all_hold(checks: dict[Any, Callable[[], None]]) -> None:
    """Runs all checks; the error has a line for each check that fails."""
    failed = {}
    for name, check in checks.items():
        try:
            check()
        except (Exception, pytest.fail.Exception) as error:
            failed[name] = error
    if failed:
        messages = (f"{k}: {type(e).__name__}: {e}" for k, e in failed.items())
        raise AssertionError("\n\n".join(messages)) from next(iter(failed.values()))
