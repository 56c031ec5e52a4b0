"""The rows of profiles and reports in JSON: an operation of a worker in a step each."""

import json
import re
from typing import Any

_STEP = re.compile(r"ProfilerStep#(\d+)")
_DEVICE = "gpu_user_annotation"


def rows(text: str, *, rank: bool) -> list[dict[str, Any]]:
    """The rows of one file, with the columns worker, step, operation and duration.

    Args:
        text: JSON.
        rank: whether a profile must say its rank.
    """
    held = json.loads(text)
    if isinstance(held, dict) and "section_scores" in held:
        return _report(held)
    if isinstance(held, list):
        held = {"traceEvents": held}
    if not isinstance(held, dict) or "traceEvents" not in held:
        raise ValueError("it has neither `traceEvents` nor `section_scores`")
    if rank and "rank" not in held.get("distributedInfo", {}):
        raise ValueError(
            "a profile in a folder needs the number of its process,"
            ' {"distributedInfo": {"rank": 0}}'
        )
    return _profile(held)


def _report(report: dict[str, Any]) -> list[dict[str, Any]]:
    """FlagScale's: seconds of each section of one step, by rank."""
    return [
        dict(worker=rank, step=report["step"], operation=section, duration=seconds)
        for section, ranks in report["section_scores"].items()
        for rank, seconds in ranks.items()
    ]


def _profile(profile: dict[str, Any]) -> list[dict[str, Any]]:
    """The complete events of a Chrome trace, in order; times become seconds.

    Kineto says a rank, counts times from `baseTimeNanoseconds`, and has an event for
    each step. Named ranges are in it twice, when the host launched them and when the
    device ran them; then the device's count.
    """
    events = [event for event in profile["traceEvents"] if event.get("ph") == "X"]
    ran = [event for event in events if event.get("cat") == _DEVICE]
    steps = [event for event in ran or events if _STEP.fullmatch(event["name"])]
    if steps:
        events = ran or events
    rank = profile.get("distributedInfo", {}).get("rank")
    base = profile.get("baseTimeNanoseconds", 0)
    made, step, stop = [], None, 0.0
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        name, start, duration = event["name"], event["ts"], event["dur"]
        if steps and (number := _STEP.fullmatch(name)):
            step, stop = int(number[1]), start + duration
        row = {
            "worker": event["pid"] if rank is None else rank,
            "operation": name,
            "start": (base + 1e3 * start) / 1e9,
            "duration": duration / 1e6,
        }
        if not steps:
            made.append({**event, **event.get("args", {}), **row})
        elif start < stop:  # within a step
            made.append({**row, "step": step})
    return made
