"""What a wheel installs, beside a project that has packages of the same names."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.runs

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A user's folder with packages of the runner's names, and a wheel's content."""
    folder = tmp_path_factory.mktemp("project")
    for source, target in {**WHEEL["force-include"], "delayjax": "delayjax"}.items():
        place = folder / "site" / target
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(ROOT / source)
    for name in ("experiments", "configs", "tests"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("")
    return folder


def python(project, code, *arguments):
    """Python in the user's folder, with what a wheel installs."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(project / "site")},
        capture_output=True,
        text=True,
    )


LAUNCHED = """
import importlib, sys
before = list(sys.path)
import delayjax_runner, experiments
assert sys.path == before
print(experiments.__file__)
for place in sys.argv[1].split():
    module, function = place.split(":")
    print(callable(getattr(importlib.import_module(module), function)))

from experiments import statements
from experiments.config_files import ConfigFile
from experiments.host import software
from experiments.training.recorded_job import recorded_job
for name in sys.argv[2].split():
    file = ConfigFile.load(name)
    statements.about(file, file.config)
print(software.git_hash(), recorded_job(2).seconds.shape)
"""


def test_a_launcher_has_the_runner_its_commands_and_the_shipped_configs(project):
    """The name is the runner, and no folder joins the path; no config has a commit.

    Also where the user's package `configs` has none of them.
    """
    commands = PROJECT["project"]["scripts"].values()
    configs = (file.stem for file in (ROOT / "configs").glob("[!_]*.py"))
    done = python(project, LAUNCHED, " ".join(commands), " ".join(configs))
    ours = project / "site" / "delayjax_runner" / "experiments" / "__init__.py"
    printed = [str(ours), *["True"] * len(commands), "unknown (2, 43)"]
    assert done.stdout.splitlines() == printed, done.stderr


def test_a_package_experiments_that_is_imported_first_is_refused_in_one_line(project):
    done = python(project, "import experiments, delayjax_runner")
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: `experiments` is {project / 'experiments'} already: import"
        " delayjax_runner first."
    )


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
