"""Writes the pages that show the book, from the table of a full run.

    python -m experiments.book.page --table=runs/book/book.csv

The entries of the table replace older entries of the same configs in docs/book.csv,
whose column `corrected` has the verdicts of headlines after the correction for all.
Then docs/book.md shows all entries, the README counts the systems by their verdicts,
and docs/experiments.md lists all configs with the time of each.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from absl import app, flags

from experiments.book.chapters import COUNTED_WITH, SYSTEMS
from experiments.book.entries import (
    DECIDED,
    Entry,
    Status,
    corrected,
    from_table,
    in_chapters,
)
from experiments.host import disk
from experiments.page import (
    Markdown,
    Verdict,
    between_marks,
    markdown_table,
    markdown_text,
    render,
)
from experiments.results import claims

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "book.csv"
PAGE = ROOT / "docs" / "book.md"
README = ROOT / "README.md"
CONFIGS = ROOT / "docs" / "experiments.md"
VERDICTS = (claims.REPRODUCED, claims.SAME_DIRECTION)
VERDICTS += (claims.NOT_REPRODUCED, claims.UNDECIDED)
"""The verdicts that the README counts, in the order of its columns."""

_TABLE = flags.DEFINE_string(
    "table", None, "book.csv of a full run; by default docs/book.csv alone."
)


def read(path: Path = TABLE) -> tuple[str, list[Entry]]:
    """The versions and dates of a table, and its entries, which are `corrected`."""
    table = pd.read_csv(path, dtype=str, na_filter=False)
    sizes, made = (table[name].unique() for name in ("size", "about"))
    about = f"{' and '.join(sizes)} size; {'; '.join(made)}"
    return about, corrected(from_table(table))


def keep(path: Path) -> None:
    """Puts the entries of a table into docs/book.csv, in place of older entries.

    Raises:
        ValueError: if the table is not of a full run.
    """
    new, kept = (pd.read_csv(f, dtype=str, na_filter=False) for f in (path, TABLE))
    sizes = {*new.get("size", ["none"])}
    if sizes != {"full"}:
        raise ValueError(
            f"{path} must be of a full run, got the sizes {', '.join(sorted(sizes))}:"
            " run experiments.book with --size=full."
        )
    table = pd.concat([kept[~kept["config"].isin(new["config"])], new])
    order = {name: n for n, name in enumerate(SYSTEMS)}
    table = table.sort_values("config", key=lambda name: name.map(order), kind="stable")
    disk.replace(TABLE, table.to_csv(index=False))


def write_corrected(entries: Sequence[Entry], path: Path = TABLE) -> None:
    """Writes the column `corrected` of a table: the verdicts of headlines.

    Args:
        entries: the `corrected` entries of the table.
        path: the table.
    """
    table = pd.read_csv(path, dtype=str, na_filter=False)
    verdicts = {one.config: one.headline.verdict for one in entries if one.headline}
    first = ~table.duplicated("config")
    table["corrected"] = table["config"].map(verdicts).where(first).fillna("")
    disk.replace(path, table.to_csv(index=False))


def markdown(about: str, entries: Sequence[Entry]) -> str:
    """The text of docs/book.md."""
    minutes: dict[str, float] = {}
    for entry in entries:
        if entry.ran_on:
            minutes[entry.ran_on] = minutes.get(entry.ran_on, 0.0) + entry.minutes
    took = [f"{minutes[where]:.0f} minutes on {where}" for where in sorted(minutes)]
    stated = [entry.headline for entry in entries if entry.headline]
    decided = [one for one in stated if one.verdict in DECIDED]
    chosen = Counter(one.chosen for one in stated)
    return render(
        "book.md",
        about=about,
        took=took,
        chapters=in_chapters(entries),
        headlines=len(stated),
        decided=len(decided),
        later=chosen[claims.Chosen.LATER],
        unseen=chosen[claims.Chosen.UNSEEN],
        later_decided=sum(one.chosen == claims.Chosen.LATER for one in decided),
    )


def html(about: str, entries: Sequence[Entry]) -> str:
    """The text of book.html, a page that loads no other file."""
    systems: dict[str, list[str]] = {}
    for entry in entries:
        systems.setdefault(entry.verdict, []).append(entry.system)
    counts = [(Verdict(name), "; ".join(members)) for name, members in systems.items()]
    chapters = in_chapters(entries)
    return render("book.html", about=about, systems=counts, chapters=chapters)


def readme_table(entries: Sequence[Entry]) -> str:
    """The README's table: the number of systems with each verdict, by chapter.

    It leaves out configs without a statement, and configs in `COUNTED_WITH`. The last
    row counts the further statements, without demonstrations.
    """
    rows, total = [], Counter[str]()
    systems = [
        one for one in entries if one.statements and one.config not in COUNTED_WITH
    ]
    for title, members in in_chapters(systems).items():
        counts = Counter(entry.verdict for entry in members)
        total += counts
        anchor = title.lower().replace(" ", "-")
        rows.append([Markdown(f"[{title}](docs/book.md#{anchor})"), *_cells(counts)])
    rows.append(["all", *_cells(total)])
    further = [one.verdict for entry in entries for one in entry.further]
    rows.append(["further statements", *_cells(Counter(further))])
    return markdown_table(["systems", *VERDICTS, claims.NO_OPTIMUM], rows)


def _cells(counts: Counter[str]) -> list[str]:
    """The cells of a row: a number for each verdict, then the number of all others."""
    known = [counts[name] for name in VERDICTS]
    return [str(count or "") for count in (*known, counts.total() - sum(known))]


def configs_list(entries: Sequence[Entry]) -> str:
    """A table of config files: the question, the forms, and the time of a run."""
    files: dict[str, list[Entry]] = {}
    for entry in entries:
        files.setdefault(entry.config.partition(":")[0], []).append(entry)
    rows = []
    for first, *others in files.values():
        forms = [entry.config.partition(":")[2] for entry in (first, *others)]
        named = ", ".join(f"`:{form}`" for form in forms if form)
        question = markdown_text(first.question) + f" ({named})" * bool(named)
        cells = f"`{first.source}`", question
        rows.append([*map(Markdown, cells), _took(first)])
    return markdown_table(["config", "question", "a run took"], rows)


def _took(entry: Entry) -> str:
    """The time of a run, and its device unless it is a CPU."""
    if entry.status is not Status.RUN:
        return str(entry.status)
    minutes = entry.minutes
    time = f"{minutes:.0f} min" if minutes >= 2 else f"{max(60 * minutes, 10):.0f} s"
    device = entry.ran_on.partition(" x ")[2].partition(", jax")[0]
    return time if device in ("cpu", "") else f"{time}, {device}"


def main(argv: list[str]) -> None:
    """Writes the pages and tables that show the book."""
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {' '.join(argv[1:])}")
    if _TABLE.value is not None:
        keep(Path(_TABLE.value))
    about, kept = read()
    write_corrected(kept)
    disk.replace(PAGE, markdown(about, kept))
    for path, lines in ((README, readme_table(kept)), (CONFIGS, configs_list(kept))):
        disk.replace(path, between_marks("book", path.read_text(), lines))


if __name__ == "__main__":
    app.run(main)
