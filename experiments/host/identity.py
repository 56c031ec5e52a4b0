"""Compares a run with the record of an earlier one, run.json."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_MAY_CHANGE = ("updates", "seconds", "examples", "target", "seeds", "most")
"""Keys of a config that may change in the same run: more updates, another target."""


def is_longer(seeds: Sequence[int], before: Sequence[int]) -> bool:
    """Whether a run has all seeds of an earlier one, in its order, and further ones."""
    return [*seeds[: len(before)]] == [*before] and len(seeds) > len(before)


def changes(
    there: Mapping[str, Any],
    here: Mapping[str, Any],
    digests: Mapping[str, Callable[[int], dict[str, str]]],
) -> list[str]:
    """The differences between two runs; none if this run is the earlier one again.

    Figures, claims and metrics may differ in the same run. It may have more updates,
    and another `most` of its searches. If it has more seeds, describe it with the seeds
    of the earlier run.

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
    for what in ("seeds", "tuning_seeds"):
        if (there.get(what) or []) != (here.get(what) or []):
            changed.append(what.replace("_", " "))
    if _but_most(there) != _but_most(here):
        changed.append("search")
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
        digests[name](updates).get(part, hashed) != hashed  # a metric may be missing
        for name, updates in both.items()
        for part, hashed in before[name].get("digest", {}).items()
    ):
        changed.append("code, constants, data or platform")
    made_with = there["versions"]["jax"]
    if changed and made_with != here["versions"]["jax"]:
        changed.append(f"JAX (it was {made_with})")
    return changed


def _but_most(run: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a search that trainings depend on: all but `most`."""
    return {k: v for k, v in run.get("search", {}).items() if k != "most"}


def begun_again(there: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, str]:
    """The programs whose checkpoints this run cannot go on from, and why."""
    reasons = {}
    most = [run.get("search", {}).get("most") for run in (there, here)]
    every = {one["name"]: one.get("evaluate_every", 1) for one in here["programs"]}
    for one in there["programs"]:
        if not (now := every.get(one["name"])):
            continue
        before = one.get("evaluate_every", now)
        if is_longer(here["seeds"], there["seeds"]):
            reasons[one["name"]] = "it has more seeds"
        elif any(update % before for update in range(0, one["updates"], now)):
            reasons[one["name"]] = "it was evaluated after other updates"
        elif one.get("searched") and most[0] != most[1]:
            reasons[one["name"]] = "its search may have another optimum"
    return reasons
