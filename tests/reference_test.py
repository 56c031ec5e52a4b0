"""The site's reference: it lists every public name, and docstrings survive in it."""

import importlib.util
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import delayjax as dj

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "reference"

spec = importlib.util.spec_from_file_location(
    "reference", ROOT / "docs" / "_ext" / "reference.py"
)
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)


def public_modules(module=dj, seen=None):
    """The root, and each module that a public module hands out as one of its names."""
    seen = {} if seen is None else seen
    seen[module.__name__] = module
    submodules = {info.name for info in pkgutil.iter_modules(module.__path__)}
    lines = inspect.getsource(module)
    for name, value in inspect.getmembers(module, inspect.ismodule):
        handed_out = f"import {name} as {name}" in lines
        if name in submodules and handed_out and value.__name__ not in seen:
            if hasattr(value, "__path__"):
                public_modules(value, seen)
            seen[value.__name__] = value
    return seen


MODULES = public_modules()


def own(value):
    return getattr(value, "__module__", "").startswith("delayjax")


def public_objects(module):
    """{name: object}: functions and classes that a module hands out as its own."""
    folder = hasattr(module, "__path__")
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and (own(value) if folder else value.__module__ == module.__name__)
    }


def rendered(page):
    """What a page asks autodoc for, in its order."""
    text = reference.expand(page.read_text())
    return re.findall(r"(?m)^\.\. (?:auto|py:)\w+:: (delayjax\S+)$", text)


LISTED = [full for page in PAGES.glob("*.md") for full in rendered(page)]
RENDERED = set(LISTED)


def named(full):
    module, _, name = full.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_every_public_name(module):
    objects = public_objects(MODULES[module])
    assert objects or module == "delayjax.compensation"
    at_root = public_objects(dj)
    missing = [
        name
        for name, value in objects.items()
        if f"{module}.{name}" not in RENDERED
        and not (at_root.get(name) is value and f"delayjax.{name}" in RENDERED)
    ]
    assert missing == [], f"docs/reference lists {module} without these names."


def test_the_reference_has_the_types_that_a_package_hands_out():
    handed_out = {
        f"{module}.{name}"
        for module, value in MODULES.items()
        if hasattr(value, "__path__")
        for name in re.findall(r"(\w+) as \1\b", inspect.getsource(value))
        if not inspect.ismodule(getattr(value, name))
        and (value is dj or not hasattr(dj, name))
    }
    assert len(handed_out) > 100
    assert handed_out <= RENDERED


def test_what_the_reference_lists_exists_and_stands_there_once():
    values = [named(full) for full in LISTED]
    objects = [value for value in values if inspect.isroutine(value) or own(value)]
    assert len(RENDERED) == len(LISTED)
    assert len({id(value) for value in objects}) == len(objects)


def test_functions_come_first_in_the_order_of_their_file():
    page = rendered(PAGES / "root.md")
    assert page[:2] == ["delayjax.delayed", "delayjax.delay_gradients"]
    at = page.index
    assert at("delayjax.replay") < at("delayjax.ReplayState") < at("delayjax.Replay")
    text = reference.listing("delayjax.exchange")
    participation = text.index("\n.. py:data:: delayjax.exchange.Participation\n")
    remark = "   step (int32 []) -> whether this worker takes part, bool []."
    assert remark in text[participation:]
    assert text.index("autofunction:: delayjax.exchange.majority") < participation


def test_every_page_is_in_the_index():
    index = (PAGES / "index.md").read_text()
    listed = re.search(r"```\{toctree\}\n:hidden:\n\n(.*?)```", index, re.DOTALL)[1]
    assert set(listed.split()) == {page.stem for page in PAGES.glob("*.md")} - {"index"}
    assert set(reference.pages()) == set(MODULES)


def translated(text):
    return "\n".join(reference.translate(text.splitlines()))


def test_an_equation_stays_in_its_lines():
    literal = "    x <- x - eta g\n    v_  <- m * v_"
    text = translated(f"In a step:\n\n{literal}\n\nand so on_.")
    assert f".. code-block:: text\n\n{literal}\n" in text
    assert text.endswith("and so on\\_.")


def test_an_equation_at_the_end_and_one_with_an_empty_line_are_literal_too():
    text = translated("It is\n\n    a = 1\n\n    b = 2")
    assert text == "It is\n\n.. code-block:: text\n\n    a = 1\n\n    b = 2\n"


def test_an_equation_under_an_argument_stays_under_it():
    text = translated("Returns:\n    What\n\n        a = 1\n\n    is.")
    code = "    .. code-block:: text\n\n        a = 1\n"
    assert text.startswith(f"Returns:\n    What\n\n{code}")


def test_sections_are_left_to_napoleon():
    docstring = "Does.\n\nArgs:\n    x: what\n        it is.\n\nReturns:\n    y."
    assert translated(docstring).replace("\\", "") == docstring


def test_a_paragraph_after_an_example_is_no_equation():
    docstring = "Example:\n    >>> 1\n    1\n\n    And so on."
    assert translated(docstring) == docstring


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
    assert translated("with |x| = 1") == "with \\|x\\| = 1"


def test_backticks_are_code_or_a_link():
    assert translated("`x_t`s of `dj.ring.cast`") == (
        "``x_t``\\ s of :py:obj:`dj.ring.cast <delayjax.ring.cast>`"
    )
    # `staleness` is a function of the root and an argument of others
    assert translated("its `staleness`") == "its ``staleness``"


def test_stars_surround_emphasis_and_multiply():
    assert translated("*Delivery*: g * g, 2*x") == "*Delivery*: g \\* g, 2\\*x"


def test_a_letter_is_no_list_and_a_number_is_one():
    assert translated("num: P.") == "num: P\\."
    assert translated("1. collect") == "1. collect"


def test_papers_are_linked():
    text = translated("Zhang, arXiv:1511.05950.")
    assert text == "Zhang, `arXiv:1511.05950 <https://arxiv.org/abs/1511.05950>`__."


def test_a_state_lists_its_fields_with_their_meaning():
    lines = reference.fields(dj.modulation.DropStaleState, "delayjax.modulation")
    assert "* ``dropped``: gradients refused so far, int32 []" in lines
    assert len([line for line in lines if line.startswith("*")]) == 2


def test_the_empty_line_after_a_doctest_is_not_shown():
    page = ["a\n\n```python\n>>> 1\n1\n\n```\n\ntext\n\n```\nplain\n\n```\n"]
    reference.read_source(None, "guide", page)
    assert page == ["a\n\n```python\n>>> 1\n1\n```\n\ntext\n\n```\nplain\n\n```\n"]
