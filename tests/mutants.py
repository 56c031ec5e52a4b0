"""Draws mutants of the library, and reports which of them the tests kill.

A mutant is the library with one token changed: an operator, a comparison, a number, or
one of a few names. A change of the tests that loses no fact kills the same mutants.

    python -m pytest -q -n 2 -m "not long" --cov=delayjax/_src --cov-context=test \\
        --cov-report=
    python -m tests.mutants --seed=0 --count=200 --out=mutants.jsonl

The first command (with pytest-cov) records in .coverage which tests execute which line.
For each mutant, the second one runs the tests that execute its line, near ones first,
until one fails. After an interruption it continues. The file has one row per mutant:
"killed" with the test, "survived", or "not killed in time". The tests run in a copy of
the tree; its tests may be of another commit: `--tests=FOLDER`.
"""

import argparse
import ast
import collections
import functools
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from coverage import CoverageData

ROOT = Path(__file__).parents[1]
LIBRARY = Path("delayjax") / "_src"
SWAPS = {
    **{"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "**": "*"},
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    **{"&": "|", "|": "&", "+=": "-=", "-=": "+=", "&=": "|=", "|=": "&="},
    **{"and": "or", "or": "and", "not": "", "is": "is not", "in": "not in"},
    **{"True": "False", "False": "True", "min": "max", "max": "min"},
    **{"minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"},
    **{"zeros_like": "ones_like", "floor": "ceil", "ceil": "floor"},
}
SECONDS = 90.0  # the time limit for the tests of a mutant


class Mutant(NamedTuple):
    """A token of a file, and its replacement."""

    path: str
    line: int
    column: int
    token: str
    instead: str


def candidates(path: Path) -> Iterator[Mutant]:
    """All mutants of a file, except in docstrings, annotations and imports."""
    text = (ROOT / path).read_text()
    skipped = set(_skipped(ast.parse(text)))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line, column = token.start
        if (line, column) in skipped or line in skipped:
            continue
        instead = SWAPS.get(token.string)
        if token.type == tokenize.NUMBER:
            instead = f"({token.string} + 1)"
        if instead is None or token.type not in (
            *(tokenize.OP, tokenize.NAME, tokenize.NUMBER),
        ):
            continue
        mutant = Mutant(str(path), line, column, token.string, instead)
        try:
            changed = ast.parse(applied(text, mutant))
        except SyntaxError:
            continue
        if ast.dump(changed) != ast.dump(ast.parse(text)):
            yield mutant


def _skipped(tree: ast.AST) -> Iterator[int | tuple[int, int]]:
    """The lines of imports, and the places of annotations."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from range(node.lineno, node.end_lineno + 1)
        for name in ("annotation", "returns"):
            part = getattr(node, name, None)
            if part is None:
                continue
            for line in range(part.lineno, part.end_lineno + 1):
                first = part.col_offset if line == part.lineno else 0
                last = part.end_col_offset if line == part.end_lineno else 200
                yield from ((line, column) for column in range(first, last))


def applied(text: str, mutant: Mutant) -> str:
    """The text of a file with the mutant in it."""
    lines = text.splitlines(keepends=True)
    line = lines[mutant.line - 1]
    stop = mutant.column + len(mutant.token)
    lines[mutant.line - 1] = line[: mutant.column] + mutant.instead + line[stop:]
    return "".join(lines)


def drawn(seed: int, count: int) -> list[Mutant]:
    """Random mutants: the same ones for the same seed and tree."""
    files = sorted((ROOT / LIBRARY).rglob("*.py"))
    mutants = [m for path in files for m in candidates(path.relative_to(ROOT))]
    return random.Random(seed).sample(mutants, count)


def executing(data: "CoverageData", mutant: Mutant) -> list[str]:
    """The tests that execute the line: near ones first, more than 3 of a function last.

    Near are the tests in the test file of the module, then those in its folder. Among
    equal ones, a test that executes little of the library comes first: it ends early.
    """
    (file,) = (f for f in data.measured_files() if f.endswith(mutant.path))
    lines = data.contexts_by_lineno(file)
    contexts = set(lines.get(mutant.line, [])) - {""}
    if not contexts:  # the import executes it: all tests of the module
        contexts = set().union(*lines.values()) - {""}
    tests = {name.split("|")[0] for name in contexts}
    size = _sizes(data)
    path = Path(mutant.path)
    kind = collections.Counter[str]()
    placed = []
    for test in sorted(tests, key=lambda test: (size[test], test)):
        name = test.split("[")[0]
        near = f"{path.stem}_test.py" in test or str(path) in test
        room = f"tests/{path.parent.name}/" in test
        is_repeat = kind[name] >= 3
        placed.append((is_repeat, not near, not room, kind[name], size[test], test))
        kind[name] += 1
    return [test for *_, test in sorted(placed)]


@functools.cache
def _sizes(data: "CoverageData") -> collections.Counter[str]:
    """The number of library lines that each test executes."""
    sizes = collections.Counter[str]()
    for file in data.measured_files():
        for contexts in data.contexts_by_lineno(file).values():
            sizes.update({name.split("|")[0] for name in contexts})
    return sizes


def judged(place: Path, mutant: Mutant, tests: Sequence[str]) -> dict[str, object]:
    """Whether one of these tests fails with the mutant in the tree at `place`."""
    file = place / mutant.path
    text = file.read_text()
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "--no-header"]
    command += ["-m", "not long"]  # whole runs, too
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:
        # the list may be too long for a command line, or empty
        names.write("\n".join(tests))
        names.flush()
        try:
            file.write_text(applied(text, mutant))
            ended = subprocess.run(
                [*command, f"@{names.name}"],
                cwd=place,
                env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired as late:
            ran = (late.stdout or b"").count(b".")
            return {"verdict": "not killed in time", "tests": ran, "of": len(tests)}
        finally:
            file.write_text(text)
    lines = ended.stdout.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if ended.returncode in (0, 5):
        return {"verdict": "survived", "tests": len(tests)}
    return {"verdict": "killed", "by": (failed or [ended.stdout[-200:]])[0]}


def main() -> None:
    """Judges the drawn mutants that are not yet in the file."""
    from coverage import CoverageData  # comes with pytest-cov

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--coverage", type=Path, default=ROOT / ".coverage")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests")
    given = parser.parse_args()
    data = CoverageData(str(given.coverage))
    data.read()
    known = given.out.read_text().splitlines() if given.out.exists() else []
    done = {Mutant(*json.loads(row)["mutant"]) for row in known}
    with tempfile.TemporaryDirectory() as folder, given.out.open("a") as file:
        place = Path(folder) / "tree"
        unwanted = shutil.ignore_patterns(".git", ".venv", "runs", "_build", "tests")
        shutil.copytree(ROOT, place, ignore=unwanted)
        shutil.copytree(given.tests, place / "tests")
        for mutant in drawn(given.seed, given.count):
            if mutant in done:
                continue
            row = {"mutant": mutant, **judged(place, mutant, executing(data, mutant))}
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
