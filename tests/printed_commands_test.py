"""Every command that a page prints starts: its flags and its config are valid."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from delayjax import cluster
from tests.readme_test import OWN_CONFIG
from tests.support.commands import ROOT, TIMEOUT
from tests.support.data_sets import write_shard

PAGES = [
    ROOT / "README.md",
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in p.parts),
]
NAMES = r"(experiments|delayjax)[\w.]*"
IN_SHELL = re.compile(rf"python3? -m (?P<module>{NAMES})(?P<rest>[^`\n]*)")
IN_TEXT = re.compile(rf"`python3? -m (?P<module>{NAMES})(?P<rest>[^`]*)`")
IN_YAML = re.compile(rf"\[python, -m, (?P<module>{NAMES}),(?P<rest>[^]]*)\]")
VARIABLES = {"i": "0", "SLURM_ARRAY_TASK_ID": "3", "HOME": "/home"}


def words(rest):
    """The arguments of a command line, without its redirections and pipes."""
    rest = re.split(r"\s(?:[>&|;#<]|2>)", rest)[0]
    given = shlex.split(rest)
    for name, value in VARIABLES.items():
        given = [word.replace(f"${name}", value) for word in given]
    return given


def commands(text):
    """The commands that a page prints: (module, arguments); a name has no arguments."""
    text = text.replace("\\\n", " ")
    for read in IN_YAML.finditer(text):
        items = re.split(r",\s+", read["rest"].strip())
        yield read["module"], [item.strip('"') for item in items]
    # text in backticks may continue in the next line
    for read in IN_TEXT.finditer(text):
        yield read["module"], words(" ".join(read["rest"].split()))
    for read in IN_SHELL.finditer(IN_TEXT.sub("", text)):
        yield read["module"], words(read["rest"])


PRINTED = [
    (str(page.relative_to(ROOT)), module, given)
    for page in PAGES
    for module, given in commands(page.read_text())
]
STARTED = [command for command in PRINTED if command[2]]  # without flags, a name
MODULE = """
import jax, optax
from delayjax import averaging
from delayjax.cluster import protocols
from experiments.comparison import rules

tx = optax.sgd(0.1)
make = my_average = lambda inner: averaging.local_sgd(inner, period=2)
my_protocol = fresh_pairs = lambda server: None
relative = rules.Rule("own", lambda trial: trial.descent(), kind=rules.STEP_SIZE)
"""


def place(folder):
    """The folder of a reader: it has all files that the pages mention."""
    (folder / "configs").symlink_to(ROOT / "configs")
    (folder / "momentum.py").write_text(OWN_CONFIG)
    for name in ("my_module", "my_rules", "my_methods", "my_protocols"):
        (folder / f"{name}.py").write_text(MODULE)
    two = cluster.Cluster(2, cluster.exponential(1.0))
    trace = cluster.simulate(two, cluster.protocols.k_async(1), 50, seed=0)
    trace.save(folder / "log.csv")
    rows = [f"{i % 2},{i // 2},{1 + i % 5 / 10}" for i in range(40)]
    (folder / "times.csv").write_text("\n".join(["worker,step,seconds", *rows]))
    write_shard(folder / "shard.bin", np.arange(5000) % 50)


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """The exit code and output of each command."""
    folder = tmp_path_factory.mktemp("printed")
    place(folder)
    shards = re.compile(r"--config\.shards=.*")  # the shards that this reader has
    asked = [
        (module, [shards.sub("--config.shards=shard.bin", word) for word in given])
        for _, module, given in STARTED
    ]
    process = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "starting.py")],
        cwd=folder,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        timeout=TIMEOUT,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


def test_the_pages_print_the_commands_that_we_know_of():
    assert len(STARTED) >= 25
    modules = {module for _, module, _ in STARTED}
    assert {"experiments.main", "experiments.draw", "delayjax.testing"} <= modules
    lines = [" ".join(given) for _, _, given in STARTED]
    for page, words in {
        "docs/pods.md": ["--config.groups=2", "--topology=v5e:4x4", "--process_id=0"],
        "README.md": ["--config=configs/default.py"],
    }.items():
        commands = [
            line for (p, _, _), line in zip(STARTED, lines, strict=True) if p == page
        ]
        for word in words:
            assert any(word in line for line in commands), word


def test_a_command_is_read_as_a_shell_reads_it():
    text = (
        "`python -m experiments.main` is a name, `python -m delayjax.testing a:b\n"
        "--d=8` not.\nA=1 python -m experiments.main --a='(0, 1)' \\\n  --b=$i & # why"
    )
    assert list(commands(text)) == [
        ("experiments.main", []),
        ("delayjax.testing", ["a:b", "--d=8"]),
        ("experiments.main", ["--a=(0, 1)", "--b=0"]),
    ]


@pytest.mark.runs
@pytest.mark.parametrize(
    "number", range(len(STARTED)), ids=lambda i: f"{STARTED[i][0]}-{STARTED[i][1]}"
)
def test_a_printed_command_comes_as_far_as_its_work(number, ends):
    page, module, given = STARTED[number]
    assert ends[number] == "", f"{page}: python -m {module} {shlex.join(given)}"


def test_a_module_that_is_only_named_is_there():
    for page, module, _ in PRINTED:
        path = ROOT / module.replace(".", "/")
        files = (path.with_suffix(".py"), path / "__main__.py")
        assert any(Path(file).exists() for file in files), (page, module)
