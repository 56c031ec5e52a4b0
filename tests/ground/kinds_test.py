"""The types of a signature are the rules of its arguments."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Literal

import pytest

from delayjax._src.ground import kinds


@kinds.checked
def called(
    count: kinds.PositiveInt,
    law: Callable[[int], float] | None = None,
    *,
    share: kinds.Share | None = -1.0,  # a default is not checked
    late: Literal["drop", "wait"] = "drop",
    other: dict | None = None,
):
    return count, law, share, late, other


@kinds.checked
@dataclasses.dataclass(frozen=True)
class Held:
    count: kinds.PositiveInt
    share: kinds.Share = 0.5

    def more(self, by: kinds.NonNegativeInt):
        return self.count + by


def test_arguments_by_position_and_by_name_are_checked_by_their_types():
    for call, message in (
        (lambda: called(0), "`count` must be at least 1, got 0"),
        (lambda: called(count=0), "`count` must be at least 1, got 0"),
        (lambda: called(1, 0.5), "`law` must be a function, got 0.5"),
        (lambda: called(1, share=1.0), r"`share` must be in \[0, 1\), got 1.0"),
        (lambda: called(1, late="now"), '`late` must be "drop" or "wait", got'),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call()


def test_none_is_taken_where_the_type_says_so_and_no_default_is_checked():
    assert called(1) == (1, None, -1.0, "drop", None)
    assert called(1, None, share=None, late="wait", other={})[2] is None


def test_a_wrong_call_is_refused_in_the_words_of_python():
    for call, message in (
        (lambda: called(1, len, 2), "takes from 1 to 2 positional arguments but 3"),
        (lambda: called(), "missing 1 required positional argument: 'count'"),
        (lambda: called(1, shares=0.5), "unexpected keyword argument 'shares'"),
    ):
        with pytest.raises(TypeError, match=message):
            call()


def test_fields_and_methods_of_a_class_are_checked():
    assert (Held(2).more(1), Held(2, 0.0).share) == (3, 0.0)
    for call, name in (
        (lambda: Held(0), "count"),
        (lambda: Held(1, share=2.0), "share"),
        (lambda: dataclasses.replace(Held(1), count=-1), "count"),
        (lambda: Held(1).more(-1), "by"),
    ):
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            call()


def test_a_signature_stays_as_it_is_written():
    assert list(inspect.signature(called).parameters) == [
        *("count", "law", "share", "late", "other")
    ]
    assert called.__name__ == "called"
