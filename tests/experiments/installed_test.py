"""The commands of an installed wheel, beside a project's package of the same name."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
LAUNCHER = ROOT / "experiments" / "installed.py"


@pytest.fixture
def project(tmp_path):
    """A folder with the launcher, as a wheel has it, and a package `experiments`."""
    (tmp_path / "site" / "delayjax_runner").mkdir(parents=True)
    launcher = tmp_path / "site" / "delayjax_runner" / "__init__.py"
    launcher.write_text(LAUNCHER.read_text())
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").write_text("mine = True\n")
    return tmp_path


def python(project, code):
    """Python in a project's folder, with the library of this checkout installed."""
    paths = [str(project / "site"), str(ROOT)]
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=project,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )


def test_each_command_is_a_function_of_the_launcher_and_each_folder_is_there():
    sources = WHEEL["force-include"]
    assert sources["experiments/installed.py"] == "delayjax_runner/__init__.py"
    assert all((ROOT / source).exists() for source in sources)
    names = {
        node.name
        for node in ast.parse(LAUNCHER.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    for command, target in PROJECT["project"]["scripts"].items():
        module, _, function = target.partition(":")
        assert module == "delayjax_runner" and function in names, command


def test_the_name_experiments_is_the_runner_and_no_folder_joins_the_path(project):
    code = (
        "import sys; before = list(sys.path); import delayjax_runner, experiments;"
        " assert sys.path == before; print(experiments.__file__)"
    )
    done = python(project, code)
    assert done.stdout.strip() == str(ROOT / "experiments" / "__init__.py"), done.stderr


def test_a_package_experiments_that_is_imported_first_is_refused_in_one_line(project):
    done = python(project, "import experiments, delayjax_runner")
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: `experiments` is {project / 'experiments'} already: import"
        " delayjax_runner first."
    )
