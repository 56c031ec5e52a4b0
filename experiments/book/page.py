"""Texts from the table of a full run: docs/book.md, and lists in two other files.

    python -m experiments.book.page --table=runs/book/book.csv

The table is kept as docs/book.csv. The README lists all systems by their verdicts,
docs/experiments.md all configs with the time of each.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template

import pandas as pd
from absl import app, flags

from experiments.book.chapters import CHAPTERS
from experiments.book.entries import source, verdict
from experiments.host import disk
from experiments.results import claims

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "book.csv"
PAGE = ROOT / "docs" / "book.md"
README = ROOT / "README.md"
CONFIGS = ROOT / "docs" / "experiments.md"
TEMPLATE = Path(__file__).with_name("book.template.md")
BEGIN, END = "<!-- book: begin -->", "<!-- book: end -->"
ORDER = (claims.REPRODUCED, "in part", claims.NOT_REPRODUCED, claims.UNDECIDED)
ORDER += (claims.NOT_TESTABLE, "no statement", "not run here", "not run yet")
"""Of the verdicts in the README."""

_TABLE = flags.DEFINE_string(
    "table", None, "book.csv of a full run; None: the kept one."
)


def read(path: Path = TABLE) -> tuple[str, pd.DataFrame]:
    """When and with what a table was made, and the table; all of it is text.

    Raises:
        ValueError: if it is of no full run.
    """
    about = path.read_text().partition("\n")[0].removeprefix("# ")
    if not about.startswith("full size; "):
        raise ValueError(
            f"{path} must be of a full run, got {about!r}: run experiments.book with"
            " --size=full."
        )
    return about, pd.read_csv(
        path, comment=None, skiprows=1, dtype=str, na_filter=False
    )


def verdicts(table: pd.DataFrame) -> dict[str, str]:
    """{config: the verdict about its system}."""
    return {
        str(config): verdict(
            rows["answer"].iloc[0], [own for own in rows["verdict"] if own]
        )
        for config, rows in table.groupby("config", sort=False)
    }


def text(about: str, table: pd.DataFrame) -> str:
    """docs/book.md."""
    runs = table[table["ran_on"] != ""].drop_duplicates("config")
    minutes = runs["minutes"].astype(float).groupby(runs["ran_on"]).sum()
    took = [f"{spent:.0f} minutes on {where}" for where, spent in minutes.items()]
    return Template(TEMPLATE.read_text()).substitute(
        about=about, took=" and ".join(took), entries="\n".join(_entries(table))
    )


def _entries(table: pd.DataFrame) -> Iterator[str]:
    whole = verdicts(table)
    for title, own in CHAPTERS.items():
        there = [config for config in own if config in whole]
        if there:
            yield f"## {title}\n"
        for config in there:
            rows = table[table["config"] == config].to_dict("records")
            yield from _entry(config, own[config], whole[config], rows)


def _entry(
    config: str, system: str, whole: str, rows: Sequence[Mapping[str, str]]
) -> Iterator[str]:
    yield f"### {system}\n"
    yield f"*{rows[0]['question']}* (`{source(config)}`)\n"
    yield f"{_escaped(rows[0]['answer'])}\n"
    if not rows[0]["statement"]:
        return
    yield f"Verdict: **{whole}**.\n"
    yield "| the source says | bound | measured here | verdict |"
    yield "|---|---|---|---|"
    for row in rows:
        said = f"{row['statement']} (“{row['said']}”: {row['source']}"
        setting = f"; {row['setting']}" * bool(row["setting"])
        cells = [f"{said}{setting})", row["bound"], row["measured"], row["verdict"]]
        yield f"| {' | '.join(_escaped(cell) for cell in cells)} |"
    yield ""
    for row in rows:
        if row["tried"] and row["verdict"] != claims.NOT_TESTABLE:
            yield f"{_escaped(row['statement'])}: {_escaped(row['tried'])}\n"


def _escaped(cell: str) -> str:
    """A text that Markdown takes as it is."""
    for sign in "\\|*_<>$`[]":
        cell = cell.replace(sign, f"\\{sign}")
    return cell


def readme_list(table: pd.DataFrame) -> str:
    """All systems by verdict, for the README; mixed verdicts with their statements."""
    found = verdicts(table)
    lines = []
    for name in ORDER:
        own = [
            _counted(rows, _COUNTED.get(name))
            for config, rows in table.groupby("config", sort=False)
            if found[str(config)] == name
        ]
        if own:
            lines.append(f"- **{name.capitalize()}** ({len(own)}): {'; '.join(own)}.")
    return "\n".join(lines)


_COUNTED = {"in part": claims.REPRODUCED, claims.NOT_REPRODUCED: claims.NOT_REPRODUCED}


def _counted(rows: pd.DataFrame, counted: str | None) -> str:
    """A system, and how many of its statements have a verdict."""
    system, verdicts = rows["system"].iloc[0], rows["verdict"]
    if counted is None:
        return system
    tested = verdicts[verdicts != claims.NOT_TESTABLE]
    return f"{system} ({(tested == counted).sum()} of {len(tested)})"


def configs_list(table: pd.DataFrame) -> str:
    """A row for each config file: its question, its forms and how long a run took."""
    lines = ["| config | question | a run took |", "|---|---|---|"]
    files = table["config"].str.partition(":")[0]
    for _, rows in table.groupby(files, sort=False):
        first, forms = rows.iloc[0], rows["config"].str.partition(":")[2].unique()
        named = ", ".join(f"`:{form}`" for form in forms if form)
        question = _escaped(first["question"]) + f" ({named})" * bool(named)
        lines.append(f"| `{source(first['config'])}` | {question} | {_took(first)} |")
    return "\n".join(lines)


def _took(row: Mapping[str, str]) -> str:
    """The time of a run, and its device unless that is a CPU."""
    if not row["ran_on"]:
        return "not run here"
    minutes = float(row["minutes"])
    time = f"{minutes:.0f} min" if minutes >= 2 else f"{max(60 * minutes, 10):.0f} s"
    device = row["ran_on"].partition(" x ")[2].partition(", jax")[0]
    return time if device == "cpu" else f"{time}, {device}"


def between_marks(text: str, lines: str) -> str:
    """A text with other lines between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{lines}\n{END}{after}"


def main(argv: list[str]) -> None:
    """Writes the page and the lists."""
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {' '.join(argv[1:])}")
    if _TABLE.value is not None:
        read(Path(_TABLE.value))  # refused before anything is replaced
        disk.replace(TABLE, Path(_TABLE.value).read_text())
    about, table = read()
    disk.replace(PAGE, text(about, table))
    for path, lines in ((README, readme_list(table)), (CONFIGS, configs_list(table))):
        disk.replace(path, between_marks(path.read_text(), lines))


if __name__ == "__main__":
    app.run(main)
