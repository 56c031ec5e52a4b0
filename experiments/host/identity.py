"""Compares a run with the record of an earlier one, run.json."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_MAY_CHANGE = ("updates", "seconds", "examples", "target")
"""Keys of a config that may change in the same run: more updates, another target."""


def differences(
    there: Mapping[str, Any],
    here: Mapping[str, Any],
    digests: Mapping[str, Callable[[int], dict[str, str]]],
) -> list[str]:
    """The differences that make a run another one than the recorded, one per line.

    Figures, claims and metrics may differ in the same run.

    Args:
        there: the record of the earlier run.
        here: the record of this run.
        digests: {program: its digest}.
    """
    before, now = (
        {program["name"]: program for program in run["programs"]}
        for run in (there, here)
    )
    lists = (
        {what: run.get(what) or [] for what in ("seeds", "tuning_seeds", "search")}
        for run in (there, here)
    )
    lines = [
        f"config.{key}: {old} there, {new} now"
        for key, old, new in _differing(there["config"], here["config"])
        if key not in _MAY_CHANGE
    ]
    lines += [
        f"{what.replace('_', ' ')}: {old} there, {new} now"
        for what, old, new in _differing(*lists)
    ]
    for what in ("cells", "searched", "facts", "batch"):
        each = (
            {name: one.get(what) for name, one in run.items()} for run in (before, now)
        )
        lines += [f"the {what} of {name}" for name, *_ in _differing(*each)]
    for name in (name for name in now if name in before):
        old, new = (run[name]["updates"] for run in (before, now))
        if new < old:
            lines.append(f"the updates of {name}: {old} there, {new} now")
            continue
        digest = digests[name](old)
        lines += [
            f"the {part} of {name}: other code, constants or data"
            for part, hashed in before[name].get("digest", {}).items()
            if digest.get(part, hashed) != hashed  # metrics may differ
        ]
    made_with = there["versions"]["jax"]
    if lines and made_with != here["versions"]["jax"]:
        lines.append(f"jax: {made_with} there")
    return lines


def evaluated_otherwise(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The programs whose records lack evaluations that this run makes."""
    every = {one["name"]: one.get("evaluate_every", 1) for one in here["programs"]}
    return [
        one["name"]
        for one in there["programs"]
        if (now := every.get(one["name"]))
        and any(
            update % one.get("evaluate_every", now)
            for update in range(0, one["updates"], now)
        )
    ]


def _differing(
    there: Mapping[str, Any], here: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    for key in sorted({*there, *here}):
        if there.get(key) != here.get(key):
            yield key, there.get(key, "absent"), here.get(key, "absent")
