"""The commands of an installed wheel, and `experiments` in a notebook beside it.

A wheel has this file as the package `delayjax_runner`, with the folders `experiments`
and `configs` in it. The user's project may also have a package `experiments`, so this
file adds no folder to `sys.path`, and binds the name only when it is imported:

    import delayjax_runner                     # binds the name `experiments`
    from experiments import Experiment, run
"""

import importlib.util
import sys
from pathlib import Path


def _folder() -> Path:
    """The folder of the package `experiments`: in a checkout, or else in the wheel."""
    library = importlib.util.find_spec("delayjax")
    assert library is not None and library.origin is not None
    checkout = Path(library.origin).parents[1]
    root = checkout if (checkout / "pyproject.toml").exists() else Path(__file__).parent
    return root / "experiments"


def _bind() -> None:
    """Binds the name `experiments` to the package of the wheel or the checkout.

    Raises:
        ImportError: if another package of this name is imported already.
    """
    folder = _folder()
    other = sys.modules.get("experiments")
    if other is not None:
        if [*map(Path, other.__path__)] != [folder]:
            raise ImportError(
                f"`experiments` is {other.__path__[0]} already: import delayjax_runner"
                " first."
            )
        return
    spec = importlib.util.spec_from_file_location(
        "experiments", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None, folder
    module = importlib.util.module_from_spec(spec)
    sys.modules["experiments"] = module
    spec.loader.exec_module(module)


def run() -> None:
    """The command `delayjax-run`, which runs the experiment of a config file."""
    from experiments import main

    main.command_line()


def advise() -> None:
    """The command `delayjax-advise`, which gives advice from recorded times."""
    from experiments.advise import __main__ as advising

    advising.command_line()


def draw() -> None:
    """The command `delayjax-draw`, which draws the figures of finished runs."""
    from experiments import draw as drawing

    drawing.command_line()


_bind()
