"""Bad flags, config values and config files: each ends in one line that names it.

`main_test.py` tests the command line in a process of its own.
"""

import contextlib
import io
import logging
import re
import sys
import time

import jax
import pytest
from absl.testing import flagsaver

from experiments import main
from experiments.host import progress
from tests.support.commands import ROOT

# as ml_collections imports config files
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

SECONDS = 10.0  # the limit of the CPU seconds of a call


def ended(*arguments):
    """Runs the command in this process: its exit code, output and CPU seconds."""
    printed, began, code = io.StringIO(), time.process_time(), 0
    handlers, level = progress.log.handlers, progress.log.level
    argv, sys.argv = sys.argv, ["experiments.main", *arguments]
    cache = jax.config.jax_compilation_cache_dir
    try:
        with (
            flagsaver.flagsaver(),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            main.main(main._parse_flags(sys.argv))
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = argv
        progress.log.handlers = handlers
        progress.log.setLevel(level)
        logging.getLogger("absl").setLevel(logging.WARNING)
        jax.config.update("jax_compilation_cache_dir", cache)
    return code, printed.getvalue(), time.process_time() - began


def check_one_line(folder, *arguments):
    """The line that the command ends with; it has written and printed nothing else."""
    code, printed, seconds = ended(*arguments)
    assert str(code).startswith("error: "), (code, printed)
    # on a busy machine, it may print its progress
    printed = re.sub(r"\S+ checking program .*\n", "", printed)
    assert "\n" not in code and not printed
    assert seconds < SECONDS
    assert not (folder / "run").exists()
    return code


DEFAULT = {  # the default config with few updates, unless the case sets them
    "config": "configs/default.py",
    "config.updates": "40",
    "config.seeds": "1",
    "config.tuning_seeds": "0",
}


def of(file, *wrong):
    """Cases of another config than the default one."""
    return {f"--config=configs/{file}.py {one}": "" for one in wrong}


def flag(name, *wrong):
    """Cases of one flag, or of one key of the default config."""
    return {f"--{name}={value}": "" for value in wrong}


# flags -> a part of the line; if it is empty, the line has the last flag
CASES = {
    **flag(
        "config.learning_rate", "(0.0,)", "(-0.1,0.1)", "(1e40,)", "(1e-60,)", "(None,)"
    ),
    **flag("config.learning_rate", "(nan,)", "()", "cosine", "(True,)", "((0.1,0.2),)"),
    **flag("config.learning_rate", "(0.1", "{}", "0.1;0.2"),
    "--config.learning_rate=(0.1,0.1)": "has the same value twice, in float32",
    **flag(
        "config.delay", "(0.5,)", "(-1,)", "('a',)", "(None,)", "(nan,)", "(2,2)", "()"
    ),
    **flag("config.delay", "(True,)", "1e40"),
    "--config.delay=(40,)": "config.delay must hold delays from 0 to",
    **flag("config.updates", "-5", "20.5", "", "99999999999", "True"),
    "--config.updates=0": "config.updates must be at least 1, got 0",
    "--config.updates=many": "config.updates=many: invalid literal for int",
    "--config.updates=1e3": "config.updates=1e3: invalid literal for int",
    **flag("config.seeds", "0", "-1", "1.5", "(1,2)", "two"),
    "--config.seeds=99999999999": "`seeds` must be a whole number from 1 to 10,000",
    **flag("config.tuning_seeds", "-1", "1.5", "two"),
    **flag("config.batch_size", "5000", "2.5", "all"),
    "--config.batch_size=-3": "`batch_size` must lie in 0 .. 1348",
    **flag("config.width", "0", "-4", "wide"),
    **flag("config.optimizer", "ADAM", "", "(1,2)", "optax:nothing", ":", "optax:"),
    **flag("config.optimizer", "math:sqrt", "optax:cosine_decay_schedule", "adam,sgd"),
    "--config.optimizer=adm": "config.optimizer must be one of adam, sgd",
    "--config.optimizer=nowhere:make": "'nowhere:make' cannot be imported",
    "--config.lrr=1": "it has no key 'lrr'; it has batch_size, delay",
    **flag("config.delay.x", "1"),
    **flag("config.", "1"),
    "--config.delay=1 --config.delay=2": "delay is given 2 times: give it once",
    **of("softsync", "--config.workers=0", "--config.n=(0,)", "--config.n=(31,)"),
    **of("softsync", "--config.momentum=(0.9,)", "--config.examples=0"),
    **of("softsync", "--config.service_spread=-1"),
    **of("local_sgd", "--config.period=(0,)", "--config.share=(1.5,)"),
    **of("adaptive_period", "--config.first_period=0"),
    **of("adasync", "--config.seconds=inf", "--config.k=(9,)"),
    **of("stability_edge", "--config.learning_rate=(0,)"),
    **of("ordered_momentum", "--config.momentum=1.0", "--config.tolerance=0.0"),
    "--config=configs/stability_edge.py --config.task=moon": (
        "config.task must be one of breast_cancer"
    ),
    **of("fedbuff", "--config.tolerance=0.0", "--config.target=nan"),
    **of("char_lm", "--config.adam_learning_rate=(1e40,)", "--config.depth=0"),
    **of("muon_delay", "--config.warmup_updates=400"),
    **of("pipeline_char_lm", "--config.warmup_updates=400"),
    **of("easgd_variants", "--config.workers=1"),
    **{
        f"--config=configs/{file}.py --config.workers=(1,4)": (
            "config.workers must be at least 2, got 1"
        )
        for file in ("tradeoff", "hogwild")
    },
    **{
        f"--config=configs/{file}.py --config.tail=1.0": "config.tail must be above 1"
        for file in ("fedbuff", "ordered_momentum", "ringmaster_lmo", "survival")
    },
    "--config=configs/gossip.py --config.batch_size=0": (
        "`examples` must be at least 134800, the examples of an update, got 54000"
    ),
    "--config=configs/gossip.py --config.workers=(4,4)": (
        "two cells with the same columns (method=all-reduce, workers=4): give each"
        " value once"
    ),
    **of("hanging_workers", "--config.workers=1"),
    **of("survival", "--config.target=0.0"),
    "--config=configs/outer_overlap.py --config.updates=105": (
        "config.updates must be a multiple of config.period = 10"
    ),
    "--config=configs/diloco.py --config.period=(5,30) --config.updates=100": (
        "config.updates must be a multiple of config.period = 30"
    ),
    "--config=configs/link_utilization.py --config.period=(1,8)": (
        "config.updates must hold one number for each value of config.period, got 4"
    ),
    **of("softsync", "--config.momentum=1.5", "--config.workers=100000"),
    **of("softsync", "--config.examples=10"),
    **of("pipeline_char_lm", "--config.stages=(0,)", "--config.stages=(2,9)"),
    **of("sync_or_async", "--config.tolerance=0.0"),
    **of("dasgd", "--config.first_step=(0.0,)"),
    **of("ringmaster_lmo", "--config.tolerance=inf", "--config.tail=1.0"),
    **of("tokens_pod", "--config.depth=0"),
    **of("delay_laws", "--config.law=('normal',)", "--config.law=(1,)"),
    **of("delay_laws", "--config.updates=-1", "--config.max_delay=143"),
    **of("modulation", "--config.power=nan", "--config.mean_delay=(4,1000)"),
    **of("guided", "--config.mean_delay=(4,1000)"),
    **of("real_trace", "--config.trace=nothing.csv"),
    **flag("workdir", "", "README.md", "no://x"),
    "--workdir=/": "--workdir=/ is /, which holds more than a run: name a folder in it",
    f"--workdir={ROOT}": "which holds more than a run: name a folder in it",
    "--workdir=experiments": "which holds more than a run: name a folder in it",
    "--workdir=~": "which holds more than a run: name a folder in it",
    "--workdir=~no_such_user/run": "--workdir=~no_such_user/run: ",
    "--workdir=~nobody": "",  # on some systems its home is /, on others none
    "--workdir=/proc/none": "--workdir=/proc/none cannot be written",
    "--shard=2/2": "--shard must be i/n with 0 <= i < n, got '2/2'",
    **flag("shard", "a/b", "1", "", "-1/2", "99/100", "0/0", "1.0/2"),
    "--profile=3": "--profile must be two updates, start,stop, with 0",
    **flag("profile", "10,5", "-1,5", "a,b", "1,2,3", "100,200"),
    **flag("coordinator", "host:12"),
    **flag("num_processes", "2", "two"),
    **flag("process_id", "1"),
    **flag("timeout_seconds", "0", "1.5"),
    **{
        f"--distributed --num_processes=2 --process_id=0 --coordinator={place}": ""
        for place in ("host", "host:0", "host:99999")
    },
    "--distributed --num_processes=0": "",
    "--distributed --timeout_seconds=-1": "",
    "--distributed --num_processes=2 --process_id=2": "",
    "--checkpoint_every=0": "0 is not a positive integer",
    **flag("checkpoint_every", "-3", "1e3"),
    **flag("compile_cache", "/proc/none"),
    **flag("check", "maybe"),
    **flag("quiet", "perhaps"),
    **flag("dry_run", "2"),
    "--stray=1": "Unknown command line flag 'stray'",
    "stray": "unknown argument 'stray'",
    **flag("flagfile", "/nothing"),
    "--config=configs/default.py --config=configs/softsync.py": "is given 2 times",
    "--config=configs/nothing.py": "there is no file configs/nothing.py",
    "--config=configs/default.py:foo": "py:foo: TypeError: get_config() takes",
    "--config=configs/k_async.py:x": "config.service must be one of exponen",
    **flag("config", "", "configs", "configs/", "configs/default", "README.md"),
    **flag("config", "configs/__init__.py", "~/nothing.py"),
}


@pytest.mark.parametrize("wrong", CASES)
def test_a_bad_value_is_one_line_that_names_it_at_once(wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    given = {"workdir": str(tmp_path / "run"), "compile_cache": ""}
    given |= DEFAULT if "--config=" not in wrong else {}
    asked = wrong.split(" ")
    names = [flag.lstrip("-").partition("=")[0] for flag in asked]
    rest = [f"--{name}={value}" for name, value in given.items() if name not in names]
    line = check_one_line(tmp_path, *rest, *asked)
    assert names[-1].removeprefix("config.").partition(".")[0] in line
    assert CASES[wrong] in line


BROKEN = {
    "get.py": (
        "def get_config():\n    return 1 + 'a'\n\n\ndef experiment(config): pass\n",
        "get.py, line 2: TypeError: unsupported operand",
    ),
    "make.py": (
        "from ml_collections import ConfigDict\n\n\ndef get_config():\n"
        "    return ConfigDict(dict(a=1))\n\n\n"
        "def experiment(config):\n    return config.a.b\n",
        "make.py, line 9: AttributeError: 'int' object has no attribute 'b'",
    ),
    "trace.py": (
        "import optax\nfrom ml_collections import ConfigDict\n"
        "from experiments import Experiment, tasks\n\n\ndef get_config():\n"
        "    return ConfigDict(dict(a=1))\n\n\ndef make(rate):\n"
        "    return optax.sgd(rate + 'a')\n\n\ndef experiment(config):\n"
        "    return Experiment(question='?', task=tasks.quadratic(), training=make,\n"
        "                      grid={'rate': (0.1,)}, updates=2)\n",
        "trace.py, line 11: TypeError: ",
    ),
    "syntax.py": ("def get_config(:\n", "syntax.py, line 1: SyntaxError: "),
    "half.py": (
        "def get_config(): pass\n",
        "half.py: AttributeError: module 'half' has no attribute 'experiment'",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_config_file_that_fails_is_one_line_with_its_place(name, tmp_path):
    text, message = BROKEN[name]
    (tmp_path / name).write_text(text)
    workdir = f"--workdir={tmp_path / 'run'}"
    config = f"--config={tmp_path / name}"
    assert message in check_one_line(tmp_path, config, workdir, "--compile_cache=")


@pytest.mark.parametrize(
    "given", ["--config=configs/default.py", "--workdir=/tmp/none"]
)
def test_a_missing_flag_is_named(given, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    missing = "--config" if "--workdir" in given else "--workdir"
    assert check_one_line(tmp_path, given) == f"error: {missing} is missing."
