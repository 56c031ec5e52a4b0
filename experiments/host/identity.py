"""Compares a run with the record of an earlier one, run.json."""

from collections.abc import Callable, Mapping
from typing import Any

_MAY_CHANGE = ("updates", "seconds", "examples", "target")
"""Keys of a config that may change in the same run: more updates, another target."""


def changes(
    there: Mapping[str, Any],
    here: Mapping[str, Any],
    digests: Mapping[str, Callable[[int], dict[str, str]]],
) -> list[str]:
    """What makes a run another one than the recorded; nothing if it is the same.

    Figures, claims and metrics may differ in the same run, and it may have more
    updates.

    Args:
        there: the record of the earlier run.
        here: the record of this run.
        digests: {program: its digest}.
    """
    before, now = (
        {program["name"]: program for program in run["programs"]}
        for run in (there, here)
    )
    old, new = there["config"], here["config"]
    changed = [
        f"config.{key} (it was {old.get(key)})"
        for key in sorted({*old, *new})
        if key not in _MAY_CHANGE and old.get(key) != new.get(key)
    ]
    for what in ("seeds", "tuning_seeds", "search"):
        if (there.get(what) or []) != (here.get(what) or []):
            changed.append(what.replace("_", " "))
    for what in ("cells", "searched", "facts", "batch"):
        kept, asked = (
            {name: one.get(what) for name, one in run.items()} for run in (before, now)
        )
        if kept != asked:
            changed.append(f"the {what} of the programs")
    both = {name: before[name]["updates"] for name in now if name in before}
    if any(now[name]["updates"] < updates for name, updates in both.items()):
        changed.append("the number of updates, which is smaller,")
    elif any(
        digests[name](updates).get(part, hashed) != hashed  # metrics may differ
        for name, updates in both.items()
        for part, hashed in before[name].get("digest", {}).items()
    ):
        changed.append("code, constants, data or platform")
    made_with = there["versions"]["jax"]
    if changed and made_with != here["versions"]["jax"]:
        changed.append(f"JAX (it was {made_with})")
    return changed


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
