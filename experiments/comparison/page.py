"""docs/rules.md and its figures, from the stored tables.

    python -m experiments.comparison.page

The page's sentences are in rules.template.md.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.comparison import cures, figure, stored, studies, verdicts
from experiments.comparison.clusters import NO_DELAY
from experiments.figures import palette, sheets

ROOT = Path(__file__).parents[2]
TEMPLATE = Path(__file__).with_name("rules.template.md")
PAGE = ROOT / "docs" / "rules.md"
CURES = {cure.name: cure for cure in cures.CURES}


COUNTS = (1, 2, 4, 8, 16, 32)
"""Trials of which the tables keep the expected best."""


def losses_of(study: str) -> verdicts.Losses:
    """The losses of a stored study."""
    return verdicts.Losses(stored.table(study), in_logarithm=study == "convex")


FURTHER = [name for name in studies.STUDIES if name != "digits"]


def stored_losses(study: str) -> verdicts.Losses | None:
    """The losses of a further study, where it is stored."""
    return losses_of(study) if stored.parts(study) else None


def versions_of(study: str) -> str:
    """The versions and the date of a stored study, as its first part has them."""
    return stored.head(study).partition("; ")[2]


def costs(losses: verdicts.Losses) -> dict[str, float]:
    """{optimizer: nats that lateness costs plain delay, a mean over clusters}."""
    return {
        name: losses.cost(name, losses.late(name, verdicts.PLAIN)).mean
        for name in losses.optimizers
    }


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table in Markdown."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def cost_table(losses: verdicts.Losses) -> Iterator[str]:
    """What lateness costs on each cluster, and the null band of all together."""
    rows = []
    for name in losses.optimizers:
        late = losses.late(name, verdicts.PLAIN)
        none = losses.mean(name, verdicts.PLAIN, [NO_DELAY]).mean()
        each = [losses.mean(name, verdicts.PLAIN, [own]).mean() for own in late]
        band, cost = losses.band(name, late), losses.cost(name, late).mean
        rows.append(
            [
                figure.NAMES[name],
                f"{none:.3f}",
                *(f"{loss:.3f}" for loss in each),
                f"{cost:.3f}",
                f"{band:.3f} ({band / cost:.0%})",
            ]
        )
    late = losses.late(losses.optimizers[0], verdicts.PLAIN)
    yield from table(["", NO_DELAY, *late, "cost, mean", "band"], rows)


def gain_table(found: pd.DataFrame, optimizer: str) -> Iterator[str]:
    """The verdicts of an optimizer, the largest gain first."""
    rows, prices = [], step_costs()
    for row in found[found["optimizer"] == optimizer].to_dict("records"):
        cure = CURES[row["rule"]]
        name = f"**{cure.name}**" if row["seen"] else cure.name
        where = ", ".join(part for part in (_code(cure.function), cure.source) if part)
        rows.append(
            [
                f"{name} ({where})" if where else name,
                f"{row['gain']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})",
                _p_value(row["p_value"]),
                _share(row["share"]),
                f"{row['clusters']}",
                _number(row["without_delay"]),
                _number(row["over_twin"]),
                *prices.get(cure.name, ("", "")),
                row["edges"],
            ]
        )
    head = ["rule", "gain, nats", "p", "of the way", "clusters", "gain without delay"]
    head += ["gain by knowing the delay", "memory", "time", "at an end"]
    yield from table(head, rows)


def step_costs() -> dict[str, tuple[str, str]]:
    """{rule: memory in gradients, time over a plain step}, as benchmarks.rules has it.

    Memory is beyond plain delay and its momentum.
    """
    stored = pd.read_csv(TEMPLATE.parent / "stored" / "costs.csv", comment="#")
    return {
        row["rule"]: (f"{row['more memory']:+.0f}", f"{row['step / delayed']:.1f}")
        for row in stored.to_dict("records")
    }


def chosen_table(losses: verdicts.Losses) -> Iterator[str]:
    """The numbers that searches chose: medians over clusters and searches."""
    rows = []
    for (optimizer, rule), own in losses.table.groupby(
        ["optimizer", "rule"], sort=False
    ):
        numbers = pd.DataFrame(own["numbers"].map(stored.numbers).tolist())
        shown = {
            name: f"{numbers[name].median():.2g}"
            f" ({numbers[name].min():.2g} to {numbers[name].max():.2g})"
            for name in numbers
        }
        names = ("learning_rate", "decay", "own")
        rows.append(
            [figure.NAMES[optimizer], rule, *(shown.get(name, "") for name in names)]
        )
    head = ["", "rule", "learning rate", "1 - momentum", "its own number"]
    yield from table(head, rows)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _share(value: float) -> str:
    return f"{round(value, 2) + 0.0:.0%}"  # 0 % has no sign


def _p_value(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.2g}"


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:+.3f}"


@sheets.STYLED
def trials_figure(losses: verdicts.Losses, rules: Sequence[str]) -> Figure:
    """The expected best of k random trials, for plain delay and some rules."""
    styles = palette.styles(rules)
    figure_, axes = sheets.sheet(
        "How many trials does a rule need?",
        [figure.NAMES[name] for name in losses.optimizers],
        palette.handles(styles),
        columns=len(losses.optimizers),
        sharey=False,
        height=2.6,
    )
    for axis, optimizer in zip(axes, losses.optimizers, strict=True):
        for rule, style in styles.items():
            whole = losses.table
            is_own = (whole["optimizer"] == optimizer) & (whole["rule"] == rule)
            own = whole[is_own & (whole["cluster"] != NO_DELAY)]
            kept = [k for k in COUNTS if f"best_of_{k}" in own]
            if len(own):
                best = [own[f"best_of_{k}"].mean() for k in kept]
                axis.plot(
                    kept, best, color=style.color, marker=style.marker, ls=style.dashes
                )
        axis.set_xscale("log", base=2)
        axis.set_xticks(COUNTS, [str(k) for k in COUNTS])
    axes[0].set_ylabel("loss of the best, nats")
    axes[len(axes) // 2].set_xlabel("random trials of step, momentum and own number")
    return figure_


def theory_table(losses: verdicts.Losses) -> Iterator[str]:
    """Plain delay on the quadratic: what the searches found, and what theory says."""
    own = losses.table
    rows = []
    for cluster, delay in EQUAL.items():
        cells = own[(own["rule"] == verdicts.PLAIN) & (own["cluster"] == cluster)]
        found = [
            studies.BOWL.expected_loss(
                delay, numbers["learning_rate"], numbers["decay"]
            )
            for numbers in map(stored.numbers, cells["numbers"])
        ]
        least, rate, decay = studies.BOWL.least(delay)
        measured = np.exp(losses.of["sgd", verdicts.PLAIN, cluster]).mean()
        rows.append(
            [
                cluster,
                f"{least:.2e} ({rate:.2g}, {decay:.2g})",
                f"{np.mean(found):.2e} ({np.mean(found) / least - 1:+.0%})",
                f"{measured:.2e}",
            ]
        )
    head = ["", "least loss of theory (step, 1 - momentum)"]
    head += ["theory at the searches' points", "measured there"]
    yield from table(head, rows)


EQUAL = {NO_DELAY: 0, "constant, 4": 4, "constant, 16": 16}
"""{cluster whose delays are all equal: the delay in updates}."""


def short_table(found: pd.DataFrame) -> Iterator[str]:
    """The verdicts of a further study: gains, and shares where there is a cost."""
    rows = []
    for row in found.to_dict("records"):
        name = f"**{row['rule']}**" if row["seen"] else row["rule"]
        gain = f"{row['gain']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"
        cost = row["gain"] / row["share"]  # nats from plain delay to the best row
        share = _share(row["share"]) if cost > 2 * row["band"] else ""
        rows.append([figure.NAMES[row["optimizer"]], name, gain, share, row["edges"]])
    head = ["", "rule", "gain", "of the way", "at an end"]
    yield from table(head, rows)


def further(stored: Mapping[str, verdicts.Losses]) -> Iterator[str]:
    """A section of each further study."""
    for name, losses in stored.items():
        described = inspect.getdoc(studies.STUDIES[name]) or ""
        yield f"### {name}\n\n{described} ({versions_of(name)}.)\n"
        yield from cost_table(losses)
        yield ""
        yield from short_table(verdicts.verdicts(losses))
        yield ""
        if name == "convex":
            yield from theory_table(losses)
            yield ""


def text(
    losses: verdicts.Losses, versions: str, others: Mapping[str, verdicts.Losses]
) -> str:
    """The page.

    Args:
        losses: of the study of the digits.
        versions: of the same.
        others: further studies by name.
    """
    found = verdicts.verdicts(losses)
    gains = [
        f"### {figure.NAMES[name]}\n\n{_lines(gain_table(found, name))}\n"
        for name in losses.optimizers
    ]
    template = Template(TEMPLATE.read_text())
    return template.substitute(
        versions=versions,
        rows=len(found),
        seen=found["seen"].sum(),
        bands=_bands(found),
        costs=_lines(cost_table(losses)),
        gains="\n".join(gains),
        further=_lines(further(others)),
        tau=f"{verdicts.agreement(losses):.2f}",
        chosen=_lines(chosen_table(losses)),
    )


def _bands(found: pd.DataFrame) -> str:
    """The band of each optimizer, which depends on the number of clusters."""
    parts = []
    for optimizer, own in found.groupby("optimizer", sort=False):
        each = own.groupby("clusters")["band"].first().sort_index(ascending=False)
        over = [f"{band:.3f} over {clusters}" for clusters, band in each.items()]
        parts.append(f"{figure.NAMES[optimizer]} {' and '.join(over)}")
    return f"{'; '.join(parts)} clusters"


def _lines(lines: Iterator[str]) -> str:
    return "\n".join(lines)


def stored_text() -> str:
    """The page of the stored tables."""
    others = {name: own for name in FURTHER if (own := stored_losses(name))}
    return text(losses_of("digits"), versions_of("digits"), others)


def main() -> None:
    """Writes the page and its figures."""
    losses = losses_of("digits")
    PAGE.write_text(stored_text())
    found = verdicts.verdicts(losses)
    names = {name: cure for name, cure in CURES.items() if name != verdicts.AGAIN}
    shown = found[found["rule"] != verdicts.AGAIN]
    sheets.save(figure.draw(shown, names, costs(losses)), ROOT / "docs" / "rules.png")
    best = found[found["seen"] & (found["gain"] > 0)].groupby("rule")["gain"].max()
    rules = [verdicts.PLAIN, *best.sort_values(ascending=False).index[:4]]
    sheets.save(trials_figure(losses, rules), ROOT / "docs" / "rules_trials.png")


if __name__ == "__main__":
    main()
