"""Draws the figures of a run again, or the README's picture of two.

python -m experiments.figures --workdir=runs/default
python -m experiments.figures --hero=runs/edge,runs/char_lm --out=docs/how_late.png
"""

from absl import app, flags

from experiments import figures
from experiments.figures import hero, look

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "A run, all of whose figures are drawn again."
)
_HERO = flags.DEFINE_list(
    "hero", None, "Runs of stability_edge and char_lm, to draw together."
)
_OUT = flags.DEFINE_string("out", None, "Where the picture of --hero goes.")


def main(argv: list[str]) -> None:
    """Draws what the flags ask for."""
    if len(argv) > 1:
        raise app.UsageError(f"unknown argument {argv[1]!r}.")
    if (_WORKDIR.value is None) == (_HERO.value is None):
        raise app.UsageError(
            "give either --workdir=DIR or --hero=EDGE_DIR,LANGUAGE_DIR."
        )
    try:
        if _HERO.value is not None:
            if len(_HERO.value) != 2 or not _OUT.value:
                raise ValueError("--hero needs two folders and --out=FILE.png.")
            print(look.save(hero.draw(*_HERO.value), _OUT.value))
            return
        for sentence in figures.warnings(_WORKDIR.value):
            print(f"warning: {sentence}")
        for path in figures.draw(_WORKDIR.value):
            print(path)
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    app.run(main)
