"""Compares delayjax with the code that people write or install, on the same tasks.

    python -m benchmarks.peers --learned_delayed_optim=DIR --ringmaster_lmo=DIR

The flags name checkouts of github.com/fournierlouis/learned_delayed_optim and of
github.com/vectozavr/ringmaster-lmo; `pip install drjax torch` installs the others. A
peer that is absent is skipped and named. All contenders of a table take turns in one
run; times are medians. "difference" is the largest difference between the parameters of
a peer and ours after the same training, over the largest parameter. ringmaster-lmo
trains in float64, we in float32. Processes that race differ from run to run, so that
only their losses are compared.

Most people begin with an Optax wrapper that has a tuple of gradients. DrJAX is Google's
library of rounds: broadcast, map, reduce. ringmaster-lmo is the reference of Ringmaster
and simulates a cluster in a Python loop. PyTorch's Hogwild is an example of PyTorch:
processes that train one model in shared memory.
"""

import argparse
import contextlib
import importlib.metadata
from collections.abc import Iterator

from benchmarks.peers import clusters, histories, hogwild, replicas
from benchmarks.side_by_side import heading
from benchmarks.tables import Row, Table, not_measured

SIZE = 1_000_000  # parameters of the histories
DELAYS = 4, 16, 64
ROUNDS = 20


def versions() -> str:
    """The versions of the peers that are installed, as text."""
    versions = []
    for name in ("optax", "drjax", "torch"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(versions)


def tables(args: argparse.Namespace) -> Iterator[Table]:
    """The four tables; each is measured when it is read."""
    caption = f"Histories: SGD on {args.size:,} float32 parameters."
    rows = histories.rows(
        args.size, args.delays, args.rounds, args.learned_delayed_optim
    )
    yield Table(caption, histories.COLUMNS, rows)
    caption = (
        "Clusters: simulation and training of 100 parameters, one gradient an update."
    )
    yield Table(
        caption,
        clusters.COLUMNS,
        named("method", clusters.rows(args.rounds, args.ringmaster_lmo)),
    )
    caption = (
        "Rounds of 8 replicas of a digits MLP (2,410 parameters), 8 examples each."
    )
    rows = named("local steps", replicas.rows(args.rounds))
    yield Table(caption, replicas.COLUMNS, rows)
    caption = f"Hogwild: the digits MLP, {args.gradients:,} gradients of 32 examples."
    yield Table(
        caption, hogwild.COLUMNS, named("processes", hogwild.rows(args.gradients))
    )


def named(column: str, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows, or a row that says why there are none."""
    try:
        yield from rows
    except Exception as error:  # a peer that is absent, or fails
        yield {column: not_measured(error)}


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--learned_delayed_optim", metavar="DIR", help="a checkout")
    add("--ringmaster_lmo", metavar="DIR", help="a checkout")
    add("--size", type=int, default=SIZE, help="parameters of the histories")
    add("--delays", type=int, nargs="+", default=DELAYS)
    add("--rounds", type=int, default=ROUNDS, help="turns of each contender")
    add("--gradients", type=int, default=5000, help="of Hogwild")
    args = parser.parse_args()
    print(f"{heading()}; {versions()}; medians\n")
    for table in tables(args):
        table.show()


if __name__ == "__main__":
    main()
