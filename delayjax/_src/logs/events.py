"""The rows of JSON profiles and reports: each is a worker's operation in a step."""

import json
import re
from typing import Any

_STEP = re.compile(r"ProfilerStep#(\d+)")
_DEVICE = "gpu_user_annotation"


def rows(text: str, *, rank: bool) -> list[dict[str, Any]]:
    """The rows of one file, with the columns worker, step, operation and duration.

    Args:
        text: JSON.
        rank: whether a profile must contain its rank.
    """
    held = json.loads(text)
    if isinstance(held, list):
        held = {"traceEvents": held}
    kinds = {"traceEvents": _profile, "section_scores": _report}
    kind = next((key for key in kinds if isinstance(held, dict) and key in held), None)
    if kind is None:
        raise ValueError("it has neither `traceEvents` nor `section_scores`")
    if rank and kind == "traceEvents" and "rank" not in held.get("distributedInfo", {}):
        raise ValueError('a profile in a folder needs {"distributedInfo": {"rank": 0}}')
    try:
        return kinds[kind](held)
    except KeyError as key:
        raise ValueError(f"an event or the report has no {key}") from key


def _report(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of FlagScale's report: seconds of each section of one step, by rank."""
    return [
        dict(worker=rank, step=report["step"], operation=section, duration=seconds)
        for section, ranks in report["section_scores"].items()
        for rank, seconds in ranks.items()
    ]


def _profile(profile: dict[str, Any]) -> list[dict[str, Any]]:
    """The complete events of a Chrome trace, in order; times become seconds.

    A profile of Kineto has a rank, times since `baseTimeNanoseconds`, and an event for
    each step. It has a named range twice: when the host launched it, and when the
    device ran it. If there are ranges of the device, only these count.
    """
    events = [event for event in profile["traceEvents"] if event.get("ph") == "X"]
    ran = [event for event in events if event.get("cat") == _DEVICE]
    launched = [event for event in events if event.get("cat") != _DEVICE]
    stepped = [some for some in (ran, launched) if any(map(_step_of, some))]
    events = stepped[0] if stepped else events
    rank = profile.get("distributedInfo", {}).get("rank")
    base = profile.get("baseTimeNanoseconds", 0)
    made: list[dict[str, Any]] = []
    steps: dict[Any, tuple[int, float]] = {}  # of each worker: its step, and its end
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        name, start, duration = event["name"], event["ts"], event["dur"]
        worker = event["pid"] if rank is None else rank
        step, stop = steps.get(worker, (None, 0.0))
        if number := _step_of(event):
            # each stream of a device has an event of the step, and may end it earlier
            stop = max(start + duration, stop if int(number[1]) == step else 0.0)
            step = int(number[1])
            steps[worker] = step, stop
        row = {
            "worker": worker,
            "operation": name,
            "start": (base + 1e3 * start) / 1e9,
            "duration": duration / 1e6,
        }
        if not stepped:
            made.append({**event, **event.get("args", {}), **row})
        elif start < stop:  # within a step
            made.append({**row, "step": step})
    return made


def _step_of(event: dict[str, Any]) -> re.Match | None:
    return _STEP.fullmatch(event["name"])
