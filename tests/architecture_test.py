"""Who may import whom (design: floors), and the shape of the public API (style: II)."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import delayjax as dj
import delayjax.testing

LIBRARY = Path(dj.__file__).parent / "_src"
ROOT = Path(__file__).parents[1]

FLOORS = (  # rooms, from the ground up
    {"ground"},
    {"history", "workers", "cluster"},
    {"rules", "exchange", "averaging", "training", "stability"},
    {"testing"},
    {"__init__"},
)
SIDEWAYS = {("stability", "cluster")}
FLOOR_OF = {module: i for i, modules in enumerate(FLOORS) for module in modules}
# what pyproject.toml names
ALLOWED = {"delayjax", "jax", "numpy", "optax", "scipy"} | sys.stdlib_module_names


def sources(folder):
    return {path: ast.parse(path.read_text()) for path in folder.rglob("*.py")}


def imported(tree):
    """Every module or `module.name` that is imported, inside of functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def module_of(path):
    return path.relative_to(LIBRARY).parts[0].removesuffix(".py")


def floor_violation(room, target):
    same = room == target or (room, target) in SIDEWAYS
    return not same and FLOOR_OF[target] >= FLOOR_OF[room]


def test_every_room_of_the_library_has_a_floor():
    assert {module_of(path) for path in sources(LIBRARY)} <= set(FLOOR_OF)


def test_the_library_imports_downwards_only():
    violations = [
        f"{path.name} imports {name}"
        for path, tree in sources(LIBRARY).items()
        for name in imported(tree)
        if name.startswith("delayjax.")
        and floor_violation(module_of(path), name.split(".")[2])
    ]
    assert violations == []


def test_sideways_and_upward_imports_are_seen():
    assert floor_violation("history", "rules")
    assert floor_violation("history", "cluster")
    assert floor_violation("ground", "history")
    assert floor_violation("exchange", "averaging")
    assert not floor_violation("history", "ground")
    assert not floor_violation("training", "history")
    assert not floor_violation("stability", "cluster")
    tree = ast.parse("def f():\n    from delayjax import ring as r\n    import os.path")
    assert list(imported(tree)) == ["delayjax.ring", "os.path"]


def test_the_library_needs_jax_numpy_optax_and_scipy_alone():
    foreign = [
        f"{path.name} imports {name}"
        for path, tree in sources(LIBRARY).items()
        for name in imported(tree)
        if name.split(".")[0] not in ALLOWED
    ]
    assert foreign == []


RUNNER = ROOT / "experiments"
RUNNER_FLOORS = (  # rooms and single modules, from the ground up
    {"tasks", "prepare"},
    {"training"},
    {"running", "results", "configs"},
    {"run"},
    {"figures"},
    {"report", "comparison", "pods"},
    {"main", "figures.__main__", "__init__"},
)
RUNNER_FLOOR_OF = {m: i for i, modules in enumerate(RUNNER_FLOORS) for m in modules}


def runner_module(parts):
    """What has a floor: a module of the runner, one of its folders, or its root."""
    names = parts[:1], parts[:2]
    found = [".".join(name) for name in names if ".".join(name) in RUNNER_FLOOR_OF]
    return found[-1] if found else "__init__"


def parts_of(path):
    return [part.removesuffix(".py") for part in path.relative_to(RUNNER).parts]


def test_every_module_of_the_runner_has_a_floor():
    parts = [parts_of(path) for path in sources(RUNNER)]
    homeless = {".".join(own) for own in parts if runner_module(own) == "__init__"}
    assert homeless == {"__init__"}


def test_the_runner_imports_downwards_only():
    violations = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, tree in sources(RUNNER).items()
        for name in imported(tree)
        if name.startswith("experiments.")
        and runner_violation(parts_of(path), name.split(".")[1:])
    ]
    assert violations == []


def runner_violation(parts, target):
    module, target = runner_module(parts), runner_module(target)
    return module != target and RUNNER_FLOOR_OF[target] >= RUNNER_FLOOR_OF[module]


def test_upward_imports_of_the_runner_are_seen():
    assert runner_violation(["running", "loop"], ["results", "tables", "Found"])
    assert runner_violation(["results", "tables"], ["running", "loop"])
    assert runner_violation(["running", "loop"], ["Experiment"])  # of the root
    assert runner_violation(["figures", "look"], ["report"])
    assert not runner_violation(["figures", "__main__"], ["report"])
    assert not runner_violation(["running", "execution"], ["running", "overlap"])
    assert runner_violation(["running", "execution"], ["pods", "compile_pod"])
    assert runner_violation(["comparison"], ["report", "write"])


def public_names():
    """What the package's root hands out on purpose: its own imports, not submodules.

    `testing` is public too, but a user imports it, for no training needs it.
    """
    tree = ast.parse(Path(dj.__file__).read_text())
    names = {n.split(".")[-1] for n in imported(tree) if n.startswith("delayjax.")}
    return names | {"__version__", "testing"}


def private_uses(tree):
    """Uses of delayjax in `tree` that go beyond its public names."""
    public = public_names()
    for name in imported(tree):
        parts = name.split(".")
        if parts[0] != "delayjax" or name == "delayjax":
            continue
        if len(parts) > 2 or parts[1] not in public:
            yield f"import {name}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        chain = ast.unparse(node).split(".")
        if chain[0] not in ("dj", "delayjax") or not all(map(str.isidentifier, chain)):
            continue
        if chain[1] not in public or any(part.startswith("_") for part in chain[2:]):
            yield ast.unparse(node)


@pytest.mark.parametrize("folder", ["experiments", "benchmarks"])
def test_experiments_and_benchmarks_use_public_names_only(folder):
    private = [
        f"{path.relative_to(ROOT)}: {use}"
        for path, tree in sources(ROOT / folder).items()
        for use in private_uses(tree)
    ]
    assert private == []


@pytest.mark.parametrize(
    "line",
    [
        "import delayjax._src.ground.base",
        "from delayjax._src.history.delayed import DelayedState",
        "from delayjax import base",
        "import delayjax as dj\ndj.base.require(1)",
        "import delayjax as dj\ndj.ring._name(1)",
    ],
)
def test_private_uses_are_seen(line):
    assert list(private_uses(ast.parse(line)))


def test_public_uses_pass():
    lines = "import delayjax as dj\nfrom delayjax import ring\ndj.ring.cast(x).push(y)"
    assert list(private_uses(ast.parse(lines))) == []


def test_a_config_is_written_with_public_names_and_needs_no_other_config():
    private = [
        f"{path.stem}: {use}"
        for path, tree in sources(ROOT / "configs").items()
        for use in (*private_uses(tree), *private_imports(tree))
    ]
    assert private == []
    others = [
        f"{path.stem} imports {name}"
        for path, tree in sources(ROOT / "configs").items()
        for name in imported(tree)
        if f"{name}.".startswith("configs.")
    ]
    assert others == []


def private_imports(tree):
    """Names with an underscore that are imported from the runner."""
    for name in imported(tree):
        if name.startswith("experiments.") and "._" in name:
            yield f"import {name}"


def test_private_names_of_the_runner_are_seen():
    tree = ast.parse("from experiments.training.rules import _x\nimport experiments.y")
    assert list(private_imports(tree)) == ["import experiments.training.rules._x"]


def test_stability_is_loaded_on_first_use():
    program = """
import sys
import delayjax as dj
assert "stability" in dir(dj)
assert not [name for name in sys.modules if "stability" in name]
loaded = dj.stability.Dynamics
from delayjax import stability
assert stability.Dynamics is loaded
assert dir(dj).count("stability") == 1
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_the_checks_of_a_contract_are_not_loaded_with_the_library():
    program = """
import sys
import delayjax as dj
assert not [name for name in sys.modules if "delayjax" in name and "testing" in name]
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_a_name_that_the_root_does_not_have_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'delayjax' has no attribute 'stabilty'"):
        _ = dj.stabilty


def functions_of(name, module):
    """{"NAME.function": function, ...} of a public module."""
    functions = inspect.getmembers(module, inspect.isfunction)
    return {f"{name}.{function.__name__}": function for _, function in functions}


def public_functions():
    """{"ring.push": function, ...}: the root's functions and its modules' own ones."""
    functions = functions_of("cluster.protocols", dj.cluster.protocols)
    for name in public_names():
        value = getattr(dj, name)
        if inspect.isfunction(value):
            functions[name] = value
        elif inspect.ismodule(value):
            functions |= functions_of(name, value)
    return functions


FUNCTIONS = dict(sorted(public_functions().items()))


def test_the_root_hands_out_the_design_s_names():
    names = {
        *("delayed", "replay", "staleness"),
        *("exchange.mean", "exchange.overlapped_mean"),
        *("averaging.easgd", "averaging.wagma", "averaging.gossip"),
        *("averaging.local_sgd", "averaging.delayed_average"),
        *("strip_history", "resize_history", "ring.sharded", "ring.on_host"),
        *("workers.vary", "workers.simulate", "workers.run"),
        *("scale_by_staleness", "drop_stale", "compensate_delay", "gap_aware"),
        *("ring.init", "ring.push", "ring.read", "ring.cast"),
        *("delays.uniform", "delays.geometric", "delays.poisson"),
        *("delays.from_trace", "delays.per_worker"),
        *("modulation.inverse", "modulation.polynomial"),
        *("modulation.hinge", "modulation.exponential"),
        *("modulation.delay_adaptive",),
        *("stability.predict_step_limit", "stability.sharpness"),
    }
    assert names <= set(FUNCTIONS)


def documented_arguments(function):
    """The arguments that the docstring's Args section names, in its order."""
    documentation = f"{inspect.getdoc(function) or ''}\n"
    section = re.search(r"^Args:\n((?:(?: {4}.*)?\n)*)", documentation, re.MULTILINE)
    names = r"^    \*{0,2}(\w+):"
    return re.findall(names, section[1], re.MULTILINE) if section else []


def has_example(function):
    documentation = inspect.getdoc(function) or ""
    return bool(re.search(r"^Example:\n    >>> ", documentation, re.MULTILINE))


def positional_defaults(function):
    """The arguments with a default that could be given without their name."""
    return [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is not parameter.empty
        and parameter.kind is not parameter.KEYWORD_ONLY
    ]


def misplaced(function):
    """A key that is not called `key`, or does not come first but behind `inner`."""
    arguments = list(inspect.signature(function).parameters)
    named = {"rng", "prng", "prng_key", "rng_key", "seed_key"} & set(arguments)
    behind = {"inner"} & set(arguments[1:])
    return named | behind | {"key"} & set(arguments[1 + ("inner" in arguments) :])


def test_public_functions_document_their_arguments():
    wrong = {
        name: documented_arguments(function)
        for name, function in FUNCTIONS.items()
        if documented_arguments(function)
        != list(inspect.signature(function).parameters)
        or not inspect.getdoc(function)
    }
    assert wrong == {}


def test_public_functions_show_an_example():
    assert [name for name, own in FUNCTIONS.items() if not has_example(own)] == []


def test_defaulted_arguments_are_keyword_only():
    assert [name for name, own in FUNCTIONS.items() if positional_defaults(own)] == []


def test_a_key_is_called_key_and_comes_first_but_behind_inner():
    """A wrapper begins with what it wraps, with a key or without one."""
    assert [name for name, own in FUNCTIONS.items() if misplaced(own)] == []


def test_faults_of_a_signature_are_seen():
    def positional(inner, rate=1.0):
        """Summary.

        Args:
            inner: what it wraps.
        """

    def late_key(rate, key):
        """Summary."""

    assert documented_arguments(positional) == ["inner"]
    assert positional_defaults(positional) == ["rate"]
    assert not has_example(positional)
    assert misplaced(late_key) == {"key"} and not misplaced(positional)


def test_a_state_s_fields_shadow_no_tuple_method():
    shadowing = [
        f"{path.name}: {node.name}.{field.target.id}"
        for path, tree in sources(LIBRARY).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and field.target.id in {"count", "index"}
    ]
    assert shadowing == []
