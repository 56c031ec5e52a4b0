"""Which module may import which other one (floors), and rules of the public API."""

import ast
import functools
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

import delayjax as dj
import delayjax.testing

ROOT = Path(__file__).parents[1]
LIBRARY = Path(dj.__file__).parent / "_src"
# the dependencies in pyproject.toml, and the standard library
ALLOWED = {"delayjax", "jax", "numpy", "optax", "scipy"} | sys.stdlib_module_names


class Building(NamedTuple):
    folder: Path
    package: str
    floors: tuple[set[str], ...]  # folders and modules; each imports from lower floors
    sideways: set[tuple[str, str]]

    def room(self, parts):
        """The entry of `floors` that a module belongs to, or else `__init__`."""
        rooms = set().union(*self.floors)
        result = [name for n in (1, 2) if (name := ".".join(parts[:n])) in rooms]
        return result[-1] if result else "__init__"

    def forbids(self, parts, target):
        """Whether module `parts` (its name split at dots) may not import `target`."""
        home, other = self.room(parts), self.room(target)
        (low,), (high,) = (
            [i for i, floor in enumerate(self.floors) if room in floor]
            for room in (home, other)
        )
        return high >= low and home != other and (home, other) not in self.sideways


BUILDINGS = {
    "library": Building(
        LIBRARY,
        "delayjax._src.",
        (
            {"ground"},
            {"history", "workers", "cluster"},
            {"rules", "exchange", "averaging", "training", "stability", "logs"},
            {"pipelines", "advice"},
            {"testing"},
            {"__init__"},
        ),
        {("stability", "cluster")},
    ),
    "runner": Building(
        ROOT / "experiments",
        "experiments.",
        (
            # host: the folder of a run, which `running` writes and `results` reads
            {"tasks", "host"},
            {"training"},
            {"running", "results", "configs", "config_files"},
            {"search", "statements", "rehearsal"},
            {"run"},
            {"figures"},
            {"page"},
            {"report", "comparison", "pods"},
            {"book", "advise"},
            {"main", "draw", "__init__"},
            {"installed"},
        ),
        set(),
    ),
}
buildings = pytest.mark.parametrize("building", BUILDINGS.values(), ids=BUILDINGS)


@functools.cache
def sources(folder):
    return {path: ast.parse(path.read_text()) for path in folder.rglob("*.py")}


def imported(tree):
    """Every imported module or `module.name`, also inside of functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def loaded_by_name(tree):
    """The modules that are loaded by a string: their names, or the first part."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func).split(".")[-1]
            texts = [node.value for node in ast.walk(node.args[0]) if is_text(node)]
            if called in ("import_module", "__import__") and texts:
                yield texts[0]


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def parts_of(path, folder):
    return [part.removesuffix(".py") for part in path.relative_to(folder).parts]


@buildings
def test_every_module_has_a_floor(building):
    parts = [parts_of(path, building.folder) for path in sources(building.folder)]
    homeless = {".".join(path) for path in parts if building.room(path) == "__init__"}
    assert homeless == {"__init__"}


@buildings
def test_imports_lead_downwards_only(building):
    violations = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, tree in sources(building.folder).items()
        for name in imported(tree)
        if name.startswith(building.package)
        and building.forbids(
            parts_of(path, building.folder),
            name.removeprefix(building.package).split("."),
        )
    ]
    assert violations == []


@pytest.mark.parametrize(
    ("name", "importer", "target", "forbidden"),
    [
        ("library", "history", "rules", True),
        ("library", "history", "cluster", True),
        ("library", "exchange", "averaging", True),
        ("library", "training", "history", False),
        ("library", "stability", "cluster", False),
        ("library", "cluster", "logs", True),
        ("runner", "running.loop", "results.runs.Run", True),
        ("runner", "running.loop", "Experiment", True),  # a name of the root
        ("runner", "figures.look", "report", True),
        ("runner", "figures.__main__", "report", True),
        ("runner", "draw", "report", False),
        ("runner", "running.execution", "running.meshes", False),
    ],
)
def test_sideways_and_upward_imports_are_seen(name, importer, target, forbidden):
    result = BUILDINGS[name].forbids(importer.split("."), target.split("."))
    assert result == forbidden


def modules(package):
    """{name of a module: its syntax tree} of a package."""
    trees = sources(ROOT / package)
    paths = [path.relative_to(ROOT).with_suffix("") for path in trees]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    return dict(zip(names, trees.values(), strict=True))


def circles(trees):
    """The groups of modules that import each other, directly or through others."""
    numbers = {name: number for number, name in enumerate(trees)}
    imports = np.zeros((len(trees), len(trees)))
    for name, tree in trees.items():
        for target in imported(tree):
            for module in (target, target.rpartition(".")[0]):  # or `module.name`
                if module in numbers:
                    imports[numbers[name], numbers[module]] = 1
                    break
    _, groups = connected_components(imports, connection="strong")
    names = np.array([*trees])
    members = [names[groups == group].tolist() for group in range(groups.max() + 1)]
    return [names for names in members if len(names) > 1]


@pytest.mark.parametrize("package", ["delayjax", "experiments"])
def test_no_modules_import_each_other(package):
    assert circles(modules(package)) == []


def test_circles_of_imports_are_seen():
    code = {
        "a": "import b.c",
        "b.c": "from d import x",
        "d": "from a import y",
        "e": "import a",
    }
    assert circles({name: ast.parse(text) for name, text in code.items()}) == [
        ["a", "b.c", "d"]
    ]


def test_config_files_alone_executes_files_and_a_wheel_its_package():
    loaders = {
        str(path.relative_to(ROOT))
        for folder in ("experiments", "configs")
        for path in sources(ROOT / folder)
        if "spec_from_file_location" in path.read_text()
    }
    assert loaders == {"experiments/config_files.py", "experiments/installed.py"}


def test_no_module_of_the_runner_is_loaded_by_a_string():
    hidden = [
        f"{path.relative_to(ROOT)} loads {name}"
        for folder in ("experiments", "configs")
        for path, tree in sources(ROOT / folder).items()
        for name in loaded_by_name(tree)
        if name.startswith(("experiments", "configs"))
    ]
    assert hidden == []


@pytest.mark.parametrize("name", ["'experiments.x'", "f'experiments.{name}'"])
def test_modules_that_a_string_loads_are_seen(name):
    tree = ast.parse(f"def f():\n    importlib.import_module({name})")
    (loaded,) = loaded_by_name(tree)
    assert loaded.startswith("experiments.")


def test_imports_inside_of_functions_are_seen():
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


def test_the_library_imports_nothing_that_jax_may_remove_without_notice():
    """JAX 0.11 removed an experimental module, and `import delayjax` failed."""
    used = {name for tree in sources(LIBRARY).values() for name in imported(tree)}
    assert not [name for name in used if name.startswith(("jax._", "jax.experimental"))]


@functools.cache
def public_names():
    """The public names of the package's root: what it imports, but no submodules.

    `testing` is public too, but a user imports it by name: no training needs it.
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


def improper_imports(tree, config=""):
    """Imports that a config may not have: private names of the runner, other configs.

    The statements of a config may import that config, `config`.
    """
    for name in imported(tree):
        private = name.startswith("experiments.") and "._" in name
        of_own = config and f"{name}.".startswith(f"configs.{config}.")
        if private or (f"{name}.".startswith("configs.") and not of_own):
            yield f"import {name}"


@pytest.mark.parametrize("folder", ["experiments", "benchmarks", "configs"])
def test_what_stands_beside_the_library_uses_public_names_only(folder):
    private = [
        f"{path.relative_to(ROOT)}: {use}"
        for path, tree in sources(ROOT / folder).items()
        for use in private_uses(tree)
    ]
    assert private == []


def test_a_config_needs_no_private_name_of_the_runner_and_no_other_config():
    improper = [
        f"{path.stem}: {use}"
        for path, tree in sources(ROOT / "configs").items()
        for use in improper_imports(
            tree, path.stem if path.parent.name == "statements" else ""
        )
    ]
    assert improper == []


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("import delayjax._src.ground.base", True),
        ("from delayjax._src.history.delayed import DelayedState", True),
        ("from delayjax import base", True),
        ("import delayjax as dj\ndj.base.require", True),
        ("import delayjax as dj\ndj.ring._name", True),
        ("from delayjax import ring\ndj.ring.cast(x).push(y)", False),
        ("from experiments.training.jobs import _x", True),
        ("import configs.pods", True),
        ("import experiments.y", False),
    ],
)
def test_private_uses_are_seen(code, seen):
    tree = ast.parse(code)
    assert bool([*private_uses(tree), *improper_imports(tree)]) == seen


def test_stability_and_logs_are_loaded_on_first_use_and_testing_by_a_user():
    program = """
import sys
import delayjax as dj
loaded = [name for name in sys.modules if name.startswith("delayjax")]
rooms = {room for name in loaded for room in name.split(".")}
assert not rooms & {"stability", "testing", "logs"}, rooms
assert "stability" in dir(dj)
loaded = dj.stability.Dynamics
from delayjax import stability
assert stability.Dynamics is loaded
assert dir(dj).count("stability") == 1
assert dj.cluster.load_trace.__module__.startswith("delayjax._src.logs.")
assert "pandas" not in sys.modules  # a reader loads it
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_an_import_loads_jax_optax_and_the_shell_of_scipy():
    program = """
import sys
import jax, optax, numpy
before = set(sys.modules)
import delayjax
print(*{name for name in sys.modules if name not in before})
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    loaded = {tuple(name.split(".")) for name in done.stdout.split()}
    packages = {first for first, *_ in loaded} - {*sys.stdlib_module_names}
    packages -= {"_cyutility"}  # a module of Cython, in some builds of SciPy
    assert packages == {"delayjax", "numpy", "scipy"}
    assert {name[1] for name in loaded if name[0] == "numpy"} <= {"typing", "_typing"}
    of_scipy = {name[1] for name in loaded if name[0] == "scipy" and len(name) > 1}
    # SciPy loads stats, special and the rest when one of them is first used
    assert {name for name in of_scipy if name[0] != "_"} == {"version"}
    assert "pallas" not in {part for name in loaded for part in name}  # of jax.extend


def test_a_name_that_the_root_does_not_have_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'delayjax' has no attribute 'stabilty'"):
        _ = dj.stabilty


def functions_of(name, module):
    """{"NAME.function": function, ...} of a public module."""
    functions = inspect.getmembers(module, inspect.isfunction)
    return {f"{name}.{function.__name__}": function for _, function in functions}


def public_functions():
    """{"ring.push": function, ...}: functions of the root and of its modules."""
    functions = functions_of("cluster.protocols", dj.cluster.protocols)
    for name in public_names():
        value = getattr(dj, name)
        if inspect.isfunction(value):
            functions[name] = value
        elif inspect.ismodule(value):
            functions |= functions_of(name, value)
    return functions


FUNCTIONS = dict(sorted(public_functions().items()))


def undocumented(function):
    """Whether the Args of the docstring differ from the arguments or their order."""
    documentation = f"{inspect.getdoc(function) or ''}\n"
    section = re.search(r"^Args:\n((?:(?: {4}.*)?\n)*)", documentation, re.MULTILINE)
    names = r"^    \*{0,2}(\w+):"
    named = re.findall(names, section[1], re.MULTILINE) if section else []
    return named != list(inspect.signature(function).parameters) or not function.__doc__


def without_example(function):
    documentation = inspect.getdoc(function) or ""
    return not re.search(r"^Example:\n    >>> ", documentation, re.MULTILINE)


def positional_defaults(function):
    """The arguments that have a default and are not keyword-only."""
    return [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is not parameter.empty
        and parameter.kind is not parameter.KEYWORD_ONLY
    ]


def misplaced(function):
    """Arguments in a wrong place: `inner` comes first, then the key, named `key`.

    A function without `inner` begins with the key, if it has one.
    """
    arguments = list(inspect.signature(function).parameters)
    named = {"rng", "prng", "prng_key", "rng_key", "seed_key"} & set(arguments)
    late = {"inner"} & set(arguments[1:])
    return named | late | {"key"} & set(arguments[1 + ("inner" in arguments) :])


@pytest.mark.parametrize(
    "fault", [undocumented, without_example, positional_defaults, misplaced]
)
def test_no_public_function_has_this_fault(fault):
    assert [name for name, function in FUNCTIONS.items() if fault(function)] == []


def test_faults_of_a_signature_are_seen():
    def positional(inner, rate=1.0):
        """Summary.

        Args:
            inner: what it wraps.
        """

    def late_key(rate, key):
        """Summary."""

    assert undocumented(positional) and without_example(positional)
    assert positional_defaults(positional) == ["rate"] and not misplaced(positional)
    assert misplaced(late_key) == {"key"}
