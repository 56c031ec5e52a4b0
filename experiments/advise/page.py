"""The page of an advice: the verdict, a table, pictures, and what was assumed."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

import delayjax as dj
from experiments.report import page

_HEAD = (
    "protocol",
    "s an update",
    "s a gradient",
    "idle",
    "staleness",
    "largest",
    "step limit",
    "s to the target",
    "times as fast",
)


def write(
    path: Path,
    log: str,
    advice: dj.cluster.Advice,
    facts: Sequence[str],
    figures: Mapping[str, Figure],
) -> Path:
    """Writes the page.

    Args:
        path: of the page.
        log: the name of the file of times.
        advice: the verdict and the rows.
        facts: of the log, in sentences; the first stands above the table.
        figures: by their titles.
    """
    rows = [_row(own) for own in advice.choices]
    assumed = "".join(
        f"<li>{page.text(own)}</li>" for own in (*advice.assumptions, *facts[1:])
    )
    body = [
        f"<h1>Which protocol for {page.text(Path(log).name)}?</h1>",
        f'<p class="answer">{page.text(advice.verdict)}</p>',
        f"<p>{page.text(facts[0])}</p>",
        page.table("Protocols: means, and 95 % intervals over the seeds", _HEAD, rows),
        *(_figure(title, own) for title, own in figures.items()),
        page.section("What was assumed", f"<ul>{assumed}</ul>"),
    ]
    path.write_text(page.document("delayjax: advice", "\n".join(body)), "utf-8")
    return path


def _row(own: dj.cluster.Choice) -> list[str]:
    return [
        own.protocol,
        f"{own.seconds_per_update.mean:.3g}",
        f"{own.seconds_per_gradient.mean:.3g}",
        f"{max(own.idle_share.mean, 0):.0%}",
        f"{own.mean_staleness.mean:.3g}",
        str(own.max_staleness),
        f"{own.step_limit.mean:.2g}",
        str(own.seconds_to_target),
        str(own.gain),
    ]


def _figure(title: str, figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", facecolor="white")
    data = base64.b64encode(file.getvalue()).decode()
    image = f'<img src="data:image/png;base64,{data}" alt="{title}">'
    return page.section(title, f"<figure>{image}</figure>")
