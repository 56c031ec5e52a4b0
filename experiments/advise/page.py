"""The page of an advice: verdicts, tables, pictures, and what was assumed."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

import delayjax as dj
from experiments.report import page


def write(
    path: Path,
    log: str,
    verdicts: Mapping[str, str],
    facts: Sequence[str],
    advices: Mapping[float, dj.cluster.Advice],
    figures: Mapping[str, Figure],
    assumed: Sequence[str],
) -> None:
    """Writes the page.

    Args:
        path: of the page.
        log: the name of the file of times.
        verdicts: by the noise, as "Noise 1".
        facts: sentences that stand above the tables.
        advices: the tables, by the noise.
        figures: by their titles.
        assumed: sentences that stand last.
    """
    answers = [
        f'<p class="answer"><b>{page.text(noise)}.</b> {page.text(said)}</p>'
        for noise, said in verdicts.items()
    ]
    tables = [own.rows() for own in advices.values()]
    head, *rows = tables[-1]  # much noise takes long: the longest simulations
    speeds = "Speed and staleness: means over the seeds"
    times = "Seconds to the target, and how many times as fast: means (95 % intervals)"
    of_noise = [
        [row[0], *(f"{table[line][-2]}; {table[line][-1]} times" for table in tables)]
        for line, row in enumerate(rows, start=1)
    ]
    body = [
        f"<h1>Which protocol for {page.text(log)}?</h1>",
        *answers,
        *(f"<p>{page.text(own)}</p>" for own in facts),
        page.section(
            "Protocols",
            page.table(speeds, head[:-2], [row[:-2] for row in rows]),
            page.table(times, [head[0], *verdicts], of_noise),
        ),
        *(_figure(title, own) for title, own in figures.items()),
        page.section("The protocols in words", _list(_PROTOCOLS)),
        page.section("What was assumed", _list(assumed)),
    ]
    path.write_text(page.document("delayjax: advice", "\n".join(body)), "utf-8")


_PROTOCOLS = (
    "hardsync(): an update waits for one gradient of each worker.",
    "k_sync(K): the first K gradients make the update; the other workers start anew.",
    "rennala(B): B gradients of the current parameters make the update, from any"
    " workers; a fast one may give several; gradients of older parameters are dropped.",
    "ssp(s): each gradient is an update; a worker waits while it is more than s tasks"
    " ahead of the slowest one.",
    "k_async(K): the next K different workers make the update; the others go on, and"
    " their gradients are late. k_async(1) is asynchronous SGD.",
    "ringmaster(R): asynchronous SGD that drops gradients staler than R - 1 updates.",
)


def _list(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{page.text(own)}</li>" for own in sentences)
    return f"<ul>{items}</ul>"


def _figure(title: str, figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", facecolor="white")
    data = base64.b64encode(file.getvalue()).decode()
    image = f'<img src="data:image/png;base64,{data}" alt="{title}">'
    return page.section(title, f"<figure>{image}</figure>")
