"""Stores finished runs of the comparison as tables, and makes docs/rules.md of them.

It also makes the README's table of the rows that gain.

    python -m experiments.comparison.page runs/digits_short_sgd runs/digits_short_adam

A study at a stage has one table. A run adds its rows, or replaces the rows of the same
rule and optimizer, so several runs may fill one table. Without runs the command makes
the page and its figure again from the stored tables.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from absl import app

from experiments.comparison import studies, tables
from experiments.comparison.clusters import NO_DELAY
from experiments.comparison.rules import RULES, TWIN
from experiments.comparison.verdicts import (
    DIVERGES,
    GAINS,
    NO_OPTIMUM,
    NOTHING_SEEN,
    order_agrees,
    verdicts,
)
from experiments.figures import palette, sheets
from experiments.figures.drawing import bars
from experiments.host import disk
from experiments.page import (
    Markdown,
    between_marks,
    markdown_table,
    markdown_text,
    render,
)
from experiments.results.runs import Run
from experiments.training.ranges import Range

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "rules.md"
README = ROOT / "README.md"
FIGURE = ROOT / "docs" / "rules.png"
_NAMES = {"sgd": "SGD", "adam": "Adam", "muon": "Muon"}
_RULES = {rule.name: rule for rule in RULES}
_MUCH = 1 / 3  # of the cost of lateness: a row in the README gains as much somewhere
_SHOWN = 1.35  # times the cost of lateness: the end of the figure's scale
_BAND = "0.9"
_KINDS = {
    (True, True): "knows no delay",
    (False, True): "for late gradients",
    (True, False): "knows no delay, no gain seen",
    (False, False): "for late gradients, no gain seen",
}
"""{(rule does not read the delay, its gain or loss is certain): legend entry}."""


class Part(NamedTuple):
    """A study at a stage, as a part of the page."""

    study: str
    stage: str
    about: str  # the versions and dates of its runs
    run: Run
    rows: pd.DataFrame  # of `verdicts`

    @property
    def title(self) -> str:
        """The heading of the part."""
        return f"{self.study}, {self.stage}"

    @property
    def costs(self) -> str:
        """A Markdown table: the losses of `BEST_PLAIN`, and the cost of lateness."""
        best = self.run.where(rule=tables.BEST_PLAIN).results
        means = best.groupby(["optimizer", "cluster"], sort=False)["train_loss"].mean()
        names = self.run.results["cluster"].unique()
        clusters = sorted(names, key=lambda name: name != NO_DELAY)
        columns = [tables.bands, tables.inexact, tables.thresholds]
        values = [column(self.run) for column in columns]
        rows = []
        for name, cost in tables.costs(self.run).items():
            numbers = *means[name][clusters], cost, *(column[name] for column in values)
            rows.append([_NAMES[name], *map("{:.4f}".format, numbers)])
        header = ["", *clusters, "cost, mean", "band", "exact to", "threshold"]
        return markdown_table(header, rows)

    @property
    def optimizers(self) -> dict[str, str]:
        """{optimizer: the Markdown table of its rows, delay-blind rows first}."""
        shown = {}
        for optimizer, rows in self.rows.groupby("optimizer", sort=False):
            records = rows.to_dict("records")
            blind = [row for row in records if _is_blind(row["rule"])]
            others = [row for row in records if not _is_blind(row["rule"])]
            shown[_NAMES[str(optimizer)]] = markdown_table(
                _HEADER, [*map(_cells, blind), *map(_cells, others)]
            )
        return shown

    @property
    def beaten(self) -> list[str]:
        """A sentence for each optimizer: the rows that gain, delay-blind rows first.

        If a row gains in the training loss and loses in the test loss, it says so.
        """
        sentences = []
        for optimizer, rows in self.rows.groupby("optimizer", sort=False):
            names = {True: [], False: []}
            gains = rows.set_index("rule")["gain"].dropna()
            tests = rows.set_index("rule")["test"]
            for rule in rows["rule"][rows["verdict"] == GAINS]:
                if rule.endswith(TWIN):
                    continue
                notes = []
                if rule + TWIN in gains:
                    notes.append(f"its twin {gains[rule + TWIN]:+.3f}")
                if tests[rule] < 0:
                    notes.append(f"test loss {-tests[rule]:.3f} higher")
                noted = f" ({', '.join(notes)})" if notes else ""
                names[_is_blind(rule)].append(f"{rule} {gains[rule]:+.3f} nats{noted}")
            blind, reads = (", ".join(names[key]) or "nothing" for key in (True, False))
            sentences.append(
                f"{_NAMES[str(optimizer)]}: without knowledge of the delay {blind};"
                f" rules for late gradients: {reads}."
            )
        return sentences

    @property
    def chosen(self) -> str:
        """A Markdown table of the numbers at the optima, medians over late clusters."""
        optima = self.run.selection.optima
        late = optima["found"] & (optima["cluster"] != NO_DELAY)
        late &= optima["rule"] != tables.BEST_PLAIN
        rows = []
        for keys, group in optima[late].groupby(["optimizer", "rule"], sort=False):
            optimizer, name = keys
            rule = _RULES.get(name.removesuffix(TWIN))
            space = {} if rule is None else rule.space
            cells = [
                _spread(group[name], space.get(name)) if name in group else ""
                for name in tables.NUMBERS
            ]
            rows.append([_NAMES[optimizer], name, *cells])
        names = [name.replace("_", " ") for name in tables.NUMBERS[:-1]]
        return markdown_table(["", "rule", *names, "the rule's number"], rows)

    @property
    def agreement(self) -> float:
        """Kendall's tau between the orders of rows in two halves of the seeds."""
        return order_agrees(self.run, least=tables.inexact(self.run))


_HEADER = [
    "rule",
    "gain, nats (95 %)",
    "p",
    "median",
    "constant",
    "random",
    "test loss",
]
_HEADER += ["of the cost", "verdict"]


def _is_blind(name: str) -> bool:
    """Whether a row may help without delay, and does not read the delay."""
    rule = _RULES.get(name.removesuffix(TWIN))
    return rule is not None and rule.undelayed and not rule.reads_delay


def _cells(row: dict[str, Any]) -> list[str]:
    """The cells of a row in the table of an optimizer."""
    rule = _RULES.get(row["rule"].removesuffix(TWIN))
    origins = (
        [] if rule is None else [rule.function and f"`{rule.function}`", rule.source]
    )
    origin = ", ".join(filter(None, origins))
    name = markdown_text(row["rule"]) + f" ({origin})" * bool(origin)
    if row["verdict"] in (NO_OPTIMUM, DIVERGES):
        return [Markdown(name), *[""] * 7, row["verdict"]]
    parts = [_signed(row[part]) for part in ("median", "constant", "random", "test")]
    gain = f"{_signed(row['gain'])} ({_signed(row['low'])} to {_signed(row['high'])})"
    p = "<0.001" if row["p"] < 0.001 else f"{row['p']:.2g}"
    verdict = row["verdict"]
    if verdict == NOTHING_SEEN and row["high"] > 0:
        verdict += f", at most {_signed(row['high'])}"
    return [Markdown(name), gain, p, *parts, f"{100 * row['share']:.0f} %", verdict]


def _spread(values: pd.Series, searched: Range | None) -> str:
    """Median (smallest to largest) of a number, and on how many clusters it is off."""
    values = values.dropna()
    on = values if searched is None else values[values != searched.off]
    middle, low, high = on.median(), on.min(), on.max()
    texts = [] if on.empty else [f"{middle:.2g} ({low:.2g} to {high:.2g})"]
    if len(on) < len(values):
        texts.append(f"off on {len(values) - len(on)} of {len(values)}")
    return ", ".join(texts)


def _signed(value: float) -> str:
    return "" if pd.isna(value) else f"{value:+.3f}"


def parts() -> list[Part]:
    """A part for each stored table, in the order of the studies and stages."""
    made = []
    for study in studies.STUDIES:
        for stage in studies.STAGES:
            file = tables.file(study, stage)
            if file.exists():
                run = studies.stored(study, stage)
                about = "; ".join(pd.read_csv(file)["about"].unique())
                made.append(Part(study, stage, about, run, verdicts(run)))
    return made


def markdown(made: Sequence[Part]) -> str:
    """The text of docs/rules.md."""
    return render(
        "rules.md",
        parts=made,
        share=round(100 * tables.SHARE_OF_COST),
        stages=studies.STAGES,
    )


def readme_table(made: Sequence[Part]) -> str:
    """The README's table: rows that gain a third of the cost of lateness.

    It has the short stages of the studies; docs/rules.md has all rows.
    """
    columns = {
        f"{part.study}, {_NAMES[str(optimizer)]}": (part, str(optimizer), rows)
        for part in made
        if part.stage == "short"
        for optimizer, rows in part.rows.groupby("optimizer", sort=False)
    }
    costs = [f"{tables.costs(part.run)[one]:.3f}" for part, one, _ in columns.values()]
    body = []
    for rule in sorted(RULES, key=lambda rule: not _is_blind(rule.name)):
        each = [rows[rows["rule"] == rule.name] for *_, rows in columns.values()]
        gains = pd.concat(each).query("verdict == @GAINS")
        if (gains["share"] >= _MUCH).any():
            cells = [
                "" if rule.optimizers and one not in rule.optimizers else _cell(rows)
                for rows, (_, one, _) in zip(each, columns.values(), strict=True)
            ]
            name = f"`{rule.function}`" if rule.function else markdown_text(rule.name)
            body.append([Markdown(name), *cells])
    header = ["gain, nats of the training loss", *columns]
    return markdown_table(header, [["what lateness costs", *costs], *body])


def _cell(rows: pd.DataFrame) -> str:
    """The gain or loss of a rule if it is certain, else an empty text.

    "?": the rule has no optimum, or diverges; "not run": not with this optimizer.
    """
    for row in rows.to_dict("records"):
        if row["verdict"] in (NO_OPTIMUM, DIVERGES):
            return "?"
        if row["verdict"] != NOTHING_SEEN:
            return _signed(row["gain"])
    return "" if len(rows) else "not run"


def keep(folders: Sequence[str]) -> None:
    """Stores the rows of finished runs of `configs/rules.py`."""
    for run in map(Run.read, folders):
        study, stage = (run.info["config"][name] for name in ("study", "stage"))
        versions = ", ".join(f"{name} {v}" for name, v in run.info["versions"].items())
        about = f"{versions}, {run.info['started'][:10]}"
        tolerances = studies.STUDIES[study].tolerance
        tables.write(run, tables.file(study, stage), about, tolerances)


@sheets.STYLED
def draw(part: Part) -> Any:
    """A figure of all gains, the largest first, with a panel for each optimizer.

    A row whose loss is beyond the scale is marked "lower".
    """
    rows = part.rows[~part.rows["verdict"].isin([NO_OPTIMUM, DIVERGES])]
    rows = rows.sort_values("gain", ascending=False)
    costs, least = tables.costs(part.run), tables.inexact(part.run)
    titles = {
        one: f"{_NAMES[one]}: cost {costs[one]:.3f}"
        for one in part.rows["optimizer"].unique()
    }
    kinds = zip(map(_is_blind, rows["rule"]), rows["verdict"], strict=True)
    table = rows.rename(columns={"rule": "row", "gain": "mean"}).assign(
        panel=rows["optimizer"].map(titles),
        color=[_KINDS[blind, verdict != NOTHING_SEEN] for blind, verdict in kinds],
        lost=rows["gain"] < -_SHOWN * rows["optimizer"].map(costs),
        theory=np.nan,
    )
    colors = [palette.COLORS[i] for i in (1, 0, 4, 5)]
    styles = {
        kind: palette.Style(color, "o", "")
        for kind, color in zip(_KINDS.values(), colors, strict=True)
    }
    within = palette.area("no more than the searches' error", color=_BAND)
    figure = bars.plot(
        table,
        [*titles.values()],
        styles,
        [*palette.handles(styles, lines=False), within],
        lost="lower",
        wide=np.inf,
        title="What does each rule gain over plain delay?",
    )
    for axis, one in zip(figure.axes, titles, strict=True):
        axis.axvspan(-least[one], least[one], color=_BAND, zorder=0.5)
        axis.set_xlim(-_SHOWN * costs[one], _SHOWN * costs[one])
        axis.set_xlabel("gain, nats")
    return figure


def main(argv: list[str]) -> None:
    """Stores the runs, then writes the page and its figure."""
    keep(argv[1:])
    made = parts()
    if not made:
        raise app.UsageError("no table is stored: give the folder of a finished run.")
    disk.replace(PAGE, markdown(made))
    with_table = between_marks("rules", README.read_text(), readme_table(made))
    disk.replace(README, with_table)
    sheets.save(draw(made[0]), FIGURE)


if __name__ == "__main__":
    app.run(main)
