"""A study: which rows are searched where, and the table of what came out."""

import contextlib
import csv
import dataclasses
import datetime
import fcntl
import importlib.metadata
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.comparison import search, spaces, trials
from experiments.comparison.cures import AGAIN, BASELINE, Cure, Optimizer

COUNTS = (1, 2, 4, 8, 16, 32)
"""Trials of which the expected best is kept."""


class Cell(NamedTuple):
    """What is searched once."""

    optimizer: str
    rule: str
    cluster: str
    search: int


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """Rules that are compared with plain delay, all searched alike.

    Attributes:
        setting: what is trained, and on which clusters.
        optimizers: by name.
        cures: the rows. Plain delay is always one, and once more in other searches.
        effort: of a search.
        searches: of each row on each cluster, independent of each other.
        reporting: seeds that no search uses, the same for all rows.
        in_logarithm: whether gains are differences of logarithms of losses, where the
            least loss is 0.
    """

    setting: trials.Setting
    optimizers: Mapping[str, Optimizer]
    cures: Sequence[Cure]
    effort: search.Effort = dataclasses.field(default_factory=search.Effort)
    searches: int = 4
    reporting: int = 20
    in_logarithm: bool = False

    def __post_init__(self):
        for optimizer in self.optimizers.values():
            for cure in self.cures:
                spaces.check(cure.whole_space(optimizer))

    @property
    def rows(self) -> dict[tuple[str, str], tuple[Optimizer, Cure]]:
        """Each optimizer with plain, then with each rule that goes with it."""
        always = (BASELINE, AGAIN)
        others = [own for own in self.cures if own not in always]
        return {
            (name, cure.name): (optimizer, cure)
            for name, optimizer in self.optimizers.items()
            for cure in (*always, *others)
            if cure.optimizers is None or name in cure.optimizers
        }

    def of_optimizers_with_rules(self) -> "Study":
        """The study without optimizers that no rule goes with."""
        named = [own.optimizers for own in self.cures]
        kept = {
            name: own
            for name, own in self.optimizers.items()
            if any(names is None or name in names for names in named)
        }
        return dataclasses.replace(self, optimizers=kept)

    def clusters_of(self, cure: Cure) -> Iterator[str]:
        """The clusters where a rule is trained.

        Without delay, where it may help as well; at constant delays, unless it is a
        learning rate there.
        """
        for cluster in self.setting.clusters:
            if cluster == trials.NO_DELAY and not cure.undelayed:
                continue
            if cluster.startswith("constant") and not cure.at_constant:
                continue
            yield cluster

    def cells(self) -> list[Cell]:
        """All that is searched, plain before the rules that start from it."""
        found = [
            Cell(optimizer, rule, cluster, number)
            for (optimizer, rule), (_, cure) in self.rows.items()
            for cluster in self.clusters_of(cure)
            for number in range(self.searches)
        ]
        return sorted(found, key=lambda cell: cell.rule != BASELINE.name)

    def run(self, cell: Cell, known: Mapping[str, float] | None) -> dict[str, Any]:
        """Searches a cell, and trains what it found on the reporting seeds.

        Args:
            cell: what is searched.
            known: the numbers of the best point of plain, from which a rule's search
                starts; None if the cell is plain.

        Returns:
            A row of the table.
        """
        optimizer, cure = self.rows[cell.optimizer, cell.rule]
        space = cure.whole_space(optimizer)
        losses = trials.of_points(self.setting, optimizer, cure, cell.cluster)
        again = cell.rule == AGAIN.name  # in searches of its own
        found = search.search(
            losses,
            space,
            self.effort,
            number=cell.search + again * self.searches,
            known=None if known is None or again else _nested(space, known),
        )
        # the seeds of searches begin at 0, those that are reported far above
        seeds = range(REPORTED, REPORTED + self.reporting)
        reported = losses(found.point[None], seeds)[0]
        numbers = spaces.values(space, found.point[None])
        kept = [count for count in COUNTS if count <= len(found.first)]
        return {
            **cell._asdict(),
            "numbers": written({name: own[0] for name, own in numbers.items()}),
            "edges": "; ".join(spaces.edges(space, found.point)),
            "fitted": int(found.fitted),
            "confirmed": found.loss,
            **{f"best_of_{k}": search.expected_best(found.first, k) for k in kept},
            **{f"loss_{i}": loss for i, loss in enumerate(reported)},
        }


REPORTED = 1_000_000
"""The first of the seeds that are reported; searches begin at 0."""


def _nested(space: spaces.Space, known: Mapping[str, float]) -> list[float] | None:
    """The best point of plain, in the space of a rule that is off."""
    point = []
    for name, own in space.items():
        value = known.get(name, own.off)
        if value is None:
            return None
        point.append(min(max(own.share(value), 0.0), 1.0))
    return point


def written(numbers: Mapping[str, float]) -> str:
    """Numbers as text, "learning_rate=0.1 decay=1", in all digits of a float32."""
    return " ".join(f"{name}={value:.9g}" for name, value in numbers.items())


def read_numbers(text: str) -> dict[str, float]:
    """Undoes `written`.

    Example:
        >>> read_numbers(written({"learning_rate": 0.1, "decay": 1.0}))
        {'learning_rate': 0.1, 'decay': 1.0}
    """
    pairs = (part.split("=") for part in text.split())
    return {name: float(value) for name, value in pairs}


class Stored:
    """The table of a study: a CSV file that grows by a row a search.

    Args:
        path: of the file.
        name: of the study and its size; a file of another one is refused. None reads
            any file.
    """

    def __init__(self, path: Path, name: str | None = None):
        self.path, self.name = path, name

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from writing the table meanwhile.

        Raises:
            ValueError: if another process writes it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f".{self.path.name}.lock")
        with beside.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(
                    f"--out={self.path} is in use by another search: wait for it, or"
                    " name another file."
                ) from None
            yield

    @property
    def head(self) -> str:
        """The study, the versions and the date, as the first line has them."""
        with self.path.open() as file:
            return file.readline().removeprefix("# ").strip()

    def read(self) -> pd.DataFrame:
        """All rows so far, without one whose writing was cut off.

        Raises:
            ValueError: if the file is of another study.
        """
        if not self.path.exists():
            return pd.DataFrame(columns=list(Cell._fields))
        if self.name is not None and not self.head.startswith(f"{self.name}; "):
            raise ValueError(
                f"{self.path} must be a table of {self.name}, got {self.head!r}: name"
                " another file."
            )
        text = self.path.read_text()
        whole = io.StringIO(text[: text.rfind("\n") + 1])
        return pd.read_csv(whole, comment="#", keep_default_na=False)

    def _mend(self) -> None:
        """Takes away the start of a row that was not finished."""
        text = self.path.read_text() if self.path.exists() else ""
        if text and not text.endswith("\n"):
            self.path.write_text(text[: text.rfind("\n") + 1])

    def done(self) -> dict[Cell, dict[str, float]]:
        """{what was searched: the numbers that were chosen}."""
        return {
            Cell(row["optimizer"], row["rule"], row["cluster"], int(row["search"])): (
                read_numbers(row["numbers"])
            )
            for row in self.read().to_dict("records")
        }

    def add(self, row: Mapping[str, Any]) -> None:
        """Writes a row, and before the first one the versions and the columns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._mend()
        begun = self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if not begun:
                file.write(f"# {self.name or 'a study'}; {_versions()}\n")
                writer.writerow(row)
            writer.writerow([_short(value) for value in row.values()])


def _versions() -> str:
    names = ("jax", "jaxlib", "optax", "numpy", "scipy")
    found = [f"{name} {importlib.metadata.version(name)}" for name in names]
    return f"{', '.join(found)}, {datetime.date.today().isoformat()}"


def _short(value: Any) -> Any:
    """A loss in six digits, far finer than its spread over seeds."""
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else value


def stored_parts(study: str) -> list[Stored]:
    """The stored tables of a study, of all its shards."""
    folder = Path(__file__).parent / "stored"
    return [Stored(path) for path in sorted(folder.glob(f"{study}_[0-9]*.csv"))]


def complete(
    study: Study,
    stored: Stored,
    *,
    shard: tuple[int, int] = (1, 1),
    say: Callable[[str], Any] = print,
) -> pd.DataFrame:
    """Searches the cells that a table lacks, and returns the table.

    Args:
        study: whose cells they are.
        stored: the table; it keeps each row as soon as it is there.
        shard: which part of how many.
        say: told of each row, with the time that is left.
    """
    done = stored.done()
    cells = [cell for cell in part(study.cells(), *shard) if cell not in done]
    begin = time.monotonic()
    for i, cell in enumerate(cells, 1):
        plain = cell._replace(rule=BASELINE.name)
        row = study.run(cell, None if cell == plain else done[plain])
        stored.add(row)
        if cell == plain:
            done[cell] = read_numbers(row["numbers"])
        minutes = (time.monotonic() - begin) / 60 / i * (len(cells) - i)
        edges = f", at an end: {row['edges']}" if row["edges"] else ""
        say(
            f"{i} of {len(cells)}: {cell.optimizer}, {cell.rule}, {cell.cluster},"
            f" search {cell.search}: {row['confirmed']:.4f}{edges};"
            f" {minutes:.0f} min left"
        )
    return stored.read()


def part(cells: Sequence[Cell], shard: int, shards: int) -> list[Cell]:
    """The cells of shard 1, 2, ... of so many: rows that stand together.

    Plain delay is in each shard that has its optimizer, as the rules start from it.
    """
    names = list(dict.fromkeys((cell.optimizer, cell.rule) for cell in cells))
    names = sorted(names, key=lambda name: name[0])
    own = {
        name for i, name in enumerate(names) if i * shards // len(names) == shard - 1
    }
    needed = own | {(optimizer, BASELINE.name) for optimizer, _ in own}
    return [cell for cell in cells if (cell.optimizer, cell.rule) in needed]
