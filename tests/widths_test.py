"""Numbers of NumPy and of JAX with few bits, in place of Python's, change nothing."""

import ast
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import delayjax as dj
from delayjax._src.ground import checks
from tests import public_calls
from tests.support.cases import shortened
from tests.support.contents import contents

LIBRARY = Path(dj.__file__).parent
PAIRS = {  # of an integer and a float
    "NumPy": (np.int8, np.float16),
    "NumPy, unsigned": (np.uint8, np.float16),
    "JAX": (jnp.int8, jnp.bfloat16),
}
# they are not hyper-parameters, but data with a dtype that stays
DATA = {("ring.read", "age"), ("modulation.inverse", "staleness")}


def exactly(value, narrow):
    """`value` as a narrow number, if it is that number."""
    with np.errstate(over="ignore"):
        number = narrow(value)
    return number if float(number) == float(value) else value


def short(value):
    """A float cut to eight bits, as many as bfloat16 has."""
    if type(value) is not float:
        return value
    fraction, exponent = math.frexp(value)
    return math.ldexp(math.floor(256 * fraction), exponent - 8)


def with_good(row, kind=None):
    """The row's call, its numbers as they are, or of a kind."""
    good = {name: short(value) for name, (value, _) in row.arguments.items()}
    if kind is not None:
        kinds = dict(zip((int, float), PAIRS[kind], strict=True))
        good = {
            name: exactly(value, kinds[type(value)])
            if type(value) in kinds and (row.label, name) not in DATA
            else value
            for name, value in good.items()
        }
    return contents(row.use(row.function(**good)))


def program(function, *args):
    """The text of a program and its constants: the same ones give the same bits."""
    jaxpr = jax.make_jaxpr(function)(*args)
    return str(jaxpr), jaxpr.consts


def has_numbers(row):
    return any(type(value) in (int, float) for value, _ in row.arguments.values())


WITH_NUMBERS = list(filter(has_numbers, public_calls.ROWS))


KINDS = [["NumPy, unsigned", "JAX"], ["NumPy"]]


@pytest.mark.parametrize("kinds", shortened(KINDS, KINDS[0]), ids=", ".join)
@pytest.mark.parametrize("row", WITH_NUMBERS, ids=lambda row: row.label)
def test_a_narrow_number_is_the_number_that_python_has(row, kinds, monkeypatch):
    monkeypatch.setattr(public_calls, "evaluated", program)
    wanted = with_good(row)
    for kind in kinds:
        assert with_good(row, kind) == wanted, kind


def test_a_window_of_eight_bits_tunes_as_one_of_python():
    x = jnp.array([3.0, 4.0])
    for window in (np.int8(20), np.uint8(20), jnp.int8(20)):
        tx, wanted = (dj.yellowfin(window=size) for size in (window, 20))
        update, _ = tx.update(x, tx.init(x))
        np.testing.assert_array_equal(update, wanted.update(x, wanted.init(x))[0])
        assert (update * x < 0).all()  # downhill


@pytest.mark.parametrize("value", [np.int8(20), jnp.uint8(20), np.float16(20)])
def test_a_checked_number_multiplies_without_wrapping(value):
    assert 100 * checks.check_number("size", value) == 2000
    traced = jax.jit(lambda size: 100 * checks.check_number("size", size))
    assert traced(value) == 2000


ANSWERING = {"check_bound", "check_integer", "check_number", "check_share"}
ANSWERING |= {"check_between", "check_scalar", "check_count", "as_scalar", "as_rate"}


def is_check(node):
    called = isinstance(node, ast.Call) and ast.unparse(node.func)
    return called and called.rpartition(".")[2] in ANSWERING


def thrown_away(tree):
    """Statements with a check whose answer has no name, or a name that is not read."""
    thrown = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            nodes = [*ast.walk(function)]
            read = [(x.id, x.lineno, x.col_offset) for x in nodes if is_read(x)]
            thrown += [x for x in nodes if is_thrown(x, read)]
    return thrown


def is_thrown(node, read):
    if isinstance(node, ast.Expr):
        return is_check(node.value)
    if not isinstance(node, ast.Assign) or not is_check(node.value):
        return False
    (target,), end = node.targets, (node.end_lineno, node.end_col_offset)
    if not isinstance(target, ast.Name):
        return False
    return not any(name == target.id and tuple(at) > end for name, *at in read)


def is_read(node):
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def test_no_answer_of_a_check_is_thrown_away():
    """A check answers with Python's number; what it was given may be a narrow one."""
    thrown = [
        f"{path.relative_to(LIBRARY)}: {ast.unparse(node)}"
        for path in LIBRARY.rglob("*.py")
        for node in thrown_away(ast.parse(path.read_text()))
    ]
    # the numbers in one array, which is used as it is
    thrown = [where for where in thrown if "slowdown.workers" not in where]
    assert not thrown


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("checks.check_bound('n', n)", 1),
        ("n = checks.check_bound('n', n)", 1),
        ("n = checks.check_bound('n', n); return n", 0),
        ("n = check_share('n', n); return lambda: n", 0),
        ("return checks.check_number('n', n)", 0),
    ],
)
def test_an_answer_that_is_thrown_away_is_seen(body, count):
    assert len(thrown_away(ast.parse(f"def f(n): {body}"))) == count
