"""What a wheel installs, beside a project that has packages of the same names."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]


@pytest.fixture
def project(tmp_path):
    """A user's folder with packages of the runner's names, and a wheel's content."""
    site = tmp_path / "site"
    for source, target in {**WHEEL["force-include"], "delayjax": "delayjax"}.items():
        (site / target).parent.mkdir(parents=True, exist_ok=True)
        (site / target).symlink_to(ROOT / source)
    for name in ("experiments", "configs", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    return tmp_path


def python(project, code, *arguments):
    """Python in the user's folder, with what a wheel installs."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(project / "site")},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("command", PROJECT["project"]["scripts"])
def test_each_command_is_a_function_of_the_launcher(command, project):
    module, _, function = PROJECT["project"]["scripts"][command].partition(":")
    done = python(project, f"import {module} as m; assert callable(m.{function})")
    assert done.returncode == 0, done.stderr


def test_the_name_experiments_is_the_runner_and_no_folder_joins_the_path(project):
    code = (
        "import sys; before = list(sys.path); import delayjax_runner, experiments;"
        " assert sys.path == before; print(experiments.__file__)"
    )
    done = python(project, code)
    ours = project / "site" / "delayjax_runner" / "experiments" / "__init__.py"
    assert done.stdout.strip() == str(ours), done.stderr


def test_a_package_experiments_that_is_imported_first_is_refused_in_one_line(project):
    done = python(project, "import experiments, delayjax_runner")
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: `experiments` is {project / 'experiments'} already: import"
        " delayjax_runner first."
    )


def test_a_shipped_config_has_its_name_and_its_statements_and_no_commit(project):
    """Also where the user's package `configs` has none of them."""
    code = """
import sys, delayjax_runner
from experiments import statements
from experiments.config_files import ConfigFile
from experiments.host import software
from experiments.training.recorded_job import recorded_job
for name in sys.argv[1:]:
    file = ConfigFile.load(name)
    statements.about(file, file.config)
print(software.git_hash(), recorded_job(2).seconds.shape)
"""
    files = (ROOT / "configs").glob("[!_]*.py")
    done = python(project, code, *(file.stem for file in files))
    assert done.stdout.strip() == "unknown (2, 43)", done.stderr


CONFIG = """
import optax
from ml_collections import ConfigDict

import delayjax as dj
from configs.shared import DELAYS
from experiments import Effect, Experiment, percent, tasks


def get_config():
    return ConfigDict(dict(delay=DELAYS, updates=4))


def experiment(config):
    def late(delay):
        return dj.delayed(optax.sgd(0.1), delay, max_delay=2)

    return Experiment(
        question="Does a delay of two updates cost much?",
        task=tasks.digits_mlp(batch_size=32),
        training=late,
        grid={"delay": config.delay},
        seeds=2,
        updates=config.updates,
        answer=Effect(metric="train_loss", against={"delay": 0}, size=percent(10)),
    )
"""


def test_a_users_config_imports_the_users_configs_and_our_experiments(project):
    (project / "configs" / "shared.py").write_text("DELAYS = (0, 2)\n")
    (project / "mine.py").write_text(CONFIG)
    flags = "--config=mine.py", "--workdir=run", "--quiet"
    done = python(project, "import delayjax_runner; delayjax_runner.run()", *flags)
    assert done.returncode == 0, done.stderr
    assert (project / "run" / "report.html").exists()
