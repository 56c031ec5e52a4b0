"""A hundred bad flags and config values: each is one line that names it, at once."""

import contextlib
import io
import logging
import sys
import time

import jax
import pytest
from absl.testing import flagsaver

from experiments import main
from experiments.running.host import progress
from tests.support.commands import ROOT

# ml_collections imports config files so
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

SECONDS = 10.0  # the most until the line is there
DEFAULT = "--config=configs/default.py"


def ended(*arguments):
    """What the command ends with, what it printed, and seconds; in this process."""
    printed, began, code = io.StringIO(), time.monotonic(), 0
    handlers, level = progress.log.handlers, progress.log.level
    own, sys.argv = sys.argv, ["experiments.main", *arguments]
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
        sys.argv = own
        progress.log.handlers = handlers
        progress.log.setLevel(level)
        logging.getLogger("absl").setLevel(logging.WARNING)
        jax.config.update("jax_compilation_cache_dir", cache)
    return code, printed.getvalue(), time.monotonic() - began


def of(file, *values):
    return [([f"--config=configs/{file}.py"], value) for value in values]


VALUES = {  # of configs/default.py
    "learning_rate": (
        *("(0.0,)", "(-0.1,0.1)", "(1e40,)", "(1e-60,)", "(None,)", "(nan,)", "()"),
        *("cosine", "(True,)", "((0.1,0.2),)", "(0.1", "{}", "(0.1,0.1)", "0.1;0.2"),
    ),
    "delay": (
        *(
            "(0.5,)",
            "(-1,)",
            "('a',)",
            "(None,)",
            "(nan,)",
            "(2,2)",
            "(40,)",
            "(True,)",
        ),
        *("()", "1e40"),
    ),
    "updates": ("0", "-5", "many", "1e3", "20.5", "", "99999999999", "True"),
    "seeds": ("0", "-1", "1.5", "(1,2)", "99999999999", "two"),
    "tuning_seeds": ("-1", "1.5", "two"),
    "batch_size": ("-3", "5000", "2.5", "all"),
    "width": ("0", "-4", "wide"),
    "optimizer": (
        *("adm", "ADAM", "", "(1,2)", "nowhere:make", "optax:nothing", ":", "optax:"),
        *("math:sqrt", "optax:cosine_decay_schedule", "adam,sgd"),
    ),
}
SHORT = {"updates": "--config.updates=40", "seeds": "--config.seeds=1"}
SHORT |= {"tuning_seeds": "--config.tuning_seeds=0"}


def short(key=""):
    """The default config, in few updates where the case says nothing of them."""
    return [DEFAULT, *(flag for name, flag in SHORT.items() if name != key)]


OF_DEFAULT = [
    (short(key), f"--config.{key}={value}")
    for key, values in VALUES.items()
    for value in values
]
OF_OTHERS = [
    *of("softsync", "--config.workers=0", "--config.n=(0,)", "--config.n=(31,)"),
    *of("softsync", "--config.momentum=(0.9,)", "--config.examples=0"),
    *of("softsync", "--config.service_spread=-1"),
    *of("local_sgd", "--config.period=(0,)", "--config.latency_seconds=-1"),
    *of("adaptive_period", "--config.period=(-1,)", "--config.first_period=0"),
    *of("adasync", "--config.seconds=-1", "--config.seconds=inf", "--config.k=(9,)"),
    *of("stability_edge", "--config.task=moon", "--config.learning_rate=(0,)"),
    *of("fedbuff", "--config.client_rate=(0.0,)", "--config.server_rate=(nan,)"),
    *of("late_updates", "--config.sgd_rate=(-1.0,)", "--config.delay=-1"),
    *of("char_lm", "--config.adam_learning_rate=(1e40,)", "--config.depth=0"),
    *of("delay_laws", "--config.law=('normal',)", "--config.law=(1,)"),
    *of("delay_laws", "--config.mean=(-1,)", "--config.updates=-1"),
    *of("modulation", "--config.mean_delay=(-1,)", "--config.power=nan"),
    *of("char_lm", "--config.warmup_updates=-1"),
    *of("real_trace", "--config.trace=nothing.csv"),
]
FLAGS = [
    *("--workdir=", "--workdir=/proc/none", "--workdir=README.md", "--workdir=no://x"),
    *("--shard=2/2", "--shard=a/b", "--shard=1", "--shard=", "--shard=-1/2"),
    *("--shard=99/100", "--shard=0/0", "--shard=1.0/2"),
    *("--profile=3", "--profile=10,5", "--profile=-1,5", "--profile=a,b"),
    *("--profile=1,2,3", "--profile=100,200"),
    *("--coordinator=host:12", "--num_processes=2", "--process_id=1"),
    *("--timeout_seconds=0", "--num_processes=two", "--timeout_seconds=1.5"),
    *("--checkpoint_every=0", "--checkpoint_every=-3", "--checkpoint_every=1e3"),
    *("--wandb=", "--wandb=project", "--compile_cache=/proc/none"),
    *("--check=maybe", "--quiet=perhaps", "--dry_run=2", "--stray=1", "stray"),
    *("--flagfile=/nothing", "--config.lrr=1", "--config.delay.x=1", "--config.=1"),
    *("--config=configs/softsync.py", "--config.delay=1 --config.delay=2"),
    *("--distributed --num_processes=0", "--distributed --timeout_seconds=-1"),
    "--distributed --num_processes=2 --process_id=2",
]
FILES = [
    *("", "configs", "configs/", "configs/default", "configs/nothing.py", "README.md"),
    *("configs/__init__.py", "configs/default.py:foo", "configs/k_async.py:x"),
    "~/nothing.py",
]
CASES = [
    *OF_DEFAULT,
    *OF_OTHERS,
    *((short(), flag) for flag in FLAGS),
    *(([], f"--config={file}") for file in FILES),
]


def test_there_are_a_hundred_of_them():
    assert len({wrong for _, wrong in CASES}) >= 100


@pytest.mark.parametrize(("given", "wrong"), CASES, ids=[wrong for _, wrong in CASES])
def test_a_bad_value_is_one_line_that_names_it_at_once(
    given, wrong, tmp_path, monkeypatch
):
    monkeypatch.chdir(ROOT)
    workdir = [f"--workdir={tmp_path / 'run'}"] * ("--workdir" not in wrong)
    keep_nothing = ["--compile_cache="] * ("--compile_cache" not in wrong)
    code, printed, seconds = ended(*given, *workdir, *keep_nothing, *wrong.split(" "))
    assert str(code).startswith("error: "), (code, printed)
    assert "\n" not in code and not printed
    flag = wrong.split(" ")[-1].partition("=")[0]
    assert flag.lstrip("-").removeprefix("config.").partition(".")[0] in code
    assert seconds < SECONDS
    assert not (tmp_path / "run").exists()
