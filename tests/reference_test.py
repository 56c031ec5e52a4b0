"""The reference lists every public name, and its docstrings are complete."""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import docstrings
import pytest
import reference

import delayjax as dj
from delayjax._src.ground.refusal import RefusingState

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "reference"


def public_modules():
    """{name: module}: the public modules of the root, and their public modules."""
    result = {"delayjax": dj}
    for name in ["", ".cluster"]:
        parent = importlib.import_module(f"delayjax{name}")
        for info in pkgutil.iter_modules(parent.__path__, f"{parent.__name__}."):
            if not info.name.endswith("._src"):
                result[info.name] = importlib.import_module(info.name)
    return result


MODULES = public_modules()


def public_objects(module):
    """{name: function or class} that a module makes public."""
    return {
        name: value
        for name, value in vars(module).items()
        if not (name.startswith("_") or inspect.ismodule(value))
    }


LISTED = [full for module in reference.pages() for full in reference.listed(module)]


def named(full):
    module, _, name = full.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_every_public_name(module):
    objects = public_objects(MODULES[module])
    assert objects
    missing = [name for name in objects if f"{module}.{name}" not in LISTED]
    assert missing == [], f"docs/reference lists {module} without these names."


def test_nothing_is_public_under_two_names_and_all_of_it_fits_one_page():
    objects = [v for m in MODULES.values() for v in public_objects(m).values()]
    assert len({id(value) for value in objects}) == len(objects)
    pipelines = public_objects(MODULES["delayjax.pipelines"]).values()
    assert 100 < len(objects) - len(pipelines) <= 184  # primal_averaging is the last
    assert len(pipelines) <= 24


@pytest.mark.parametrize("module", MODULES)
def test_a_public_module_holds_nothing_but_imports_from_the_private_one(module):
    _, *body = ast.parse(inspect.getsource(MODULES[module])).body  # after its docstring
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    private = [node for node in imports if node.module.startswith("delayjax._src")]
    names = {alias.name for node in private for alias in node.names}
    assert names == set(public_objects(MODULES[module]))


def test_no_function_shadows_a_public_module():
    for name, module in MODULES.items():
        assert importlib.import_module(name) is module
        assert inspect.ismodule(module)
        parent, _, attribute = name.rpartition(".")
        assert not parent or getattr(MODULES[parent], attribute) is module


def test_what_the_reference_lists_exists_and_stands_there_once():
    assert len({id(named(full)) for full in LISTED}) == len(LISTED)


def test_the_wrapper_comes_first_and_what_a_function_returns_after_it():
    page = reference.listed("delayjax")
    assert page[:2] == ["delayjax.delayed", "delayjax.staleness"]
    assert page.index("delayjax.replay") < page.index("delayjax.Replay")


def test_every_page_is_in_the_index():
    index = (PAGES / "index.md").read_text()
    listed = re.search(r"```\{toctree\}\n:hidden:\n\n(.*?)```", index, re.DOTALL)[1]
    assert set(listed.split()) == {page.stem for page in PAGES.glob("*.md")} - {"index"}
    assert set(reference.pages()) == set(MODULES)


def translated(text):
    return "\n".join(docstrings.translate(text.splitlines()))


def test_an_equation_stays_in_its_lines():
    literal = "    x <- x - eta g\n    v_  <- m * v_"
    text = translated(f"In a step:\n\n{literal}\n\nand so on_.")
    assert f".. equation::\n\n{literal}\n" in text
    assert text.endswith("and so on\\_.")


PAPER = (
    "`arXiv:1511.05950 <https://arxiv.org/abs/1511.05950>`__ :footcite:p:`1511.05950`"
)
TRANSLATED = {
    "two equations": (
        "It is\n\n    a = 1\n\n    b = 2",
        "It is\n\n.. equation::\n\n    a = 1\n\n    b = 2\n",
    ),
    "an equation under an argument": (
        "Returns:\n    What\n\n        a = 1\n\n    is.",
        "Returns:\n    What\n\n    .. equation::\n\n        a = 1\n\n\n    is.",
    ),
    "a paragraph after an example": 2
    * ("Example:\n    >>> 1\n    1\n\n    And so on.",),
    "bars": ("with |x| = 1", "with \\|x\\| = 1"),
    "code": ("`x_t`s of `dj.ring.cast`", "``x_t``\\ s of ``dj.ring.cast``"),
    "stars": ("*Delivery*: g * g, 2*x", "*Delivery*: g \\* g, 2\\*x"),
    "a letter is no list": ("num: P.", "num: P\\."),
    "a number is one": ("1. collect", "1. collect"),
    "papers": ("Zhang, arXiv:1511.05950.", f"Zhang, {PAPER}."),
}


@pytest.mark.parametrize("name", TRANSLATED)
def test_a_docstring_is_translated_for_sphinx(name):
    text, expected = TRANSLATED[name]
    assert translated(text) == expected


def test_sections_are_left_to_napoleon():
    docstring = "Does.\n\nArgs:\n    x: what\n        it is.\n\nReturns:\n    y."
    assert translated(docstring).replace("\\", "") == docstring


def test_a_table_is_a_table_and_its_rows_may_wrap():
    table = "| method | options |\n|---|---|\n| one | `turn=first,\n  unlocked` |\n"
    text = translated(f"By name:\n\n{table}| two | |")
    assert text.split("\n") == [
        "By name:",
        "",
        "",
        ".. list-table::",
        "   :header-rows: 1",
        "",
        "   * - method",
        "     - options",
        "   * - one",
        "     - ``turn=first, unlocked``",
        "   * - two",
        "     -",
        "",
    ]


def test_bars_in_an_equation_are_no_table():
    assert "list-table" not in translated("Norm:\n\n    |x| = 1\n    |y| = 2")


def test_a_state_lists_its_fields_with_their_meaning():
    lines = docstrings.fields(RefusingState)
    assert "* ``dropped``: gradients refused so far, int32 []" in lines
    assert len([line for line in lines if line.startswith("*")]) == 5
