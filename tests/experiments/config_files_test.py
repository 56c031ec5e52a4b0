"""Each config file makes an experiment with few knobs, whose claims can fail."""

import dataclasses
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from scipy import stats

from delayjax import cluster
from experiments import Experiment, main, statements
from experiments.config_files import ConfigFile, knobs
from experiments.running import programs
from experiments.training.gradients import histories
from experiments.training.jobs import arguments, called

pytestmark = pytest.mark.runs

FILES = sorted(Path(__file__).parents[2].joinpath("configs").glob("[!_]*.py"))
NEED_DATA = ("imagenet", "tokens_pod")  # in pod_configs_test.py
NEED_DATA += ("pipeline_tokens",)  # in late_stages_test.py
FORMS = [
    (file, question)
    for file in FILES
    for question in {
        "async_islands": ("toy", "characters"),
        "k_async": ("exponential", "shifted", "pareto"),
        "stability_edge": ("breast_cancer", "quadratic", "digits_mlp"),
        "time_optimal": ("sqrt", "linear"),
        "workers": ("curvature", "spectrum"),
    }.get(file.stem, ("",))
]
QUESTIONS = [form for form in FORMS if form[0].stem not in NEED_DATA]
# keys with the same meaning in most configs; other keys may need a limit, too
USUAL = re.compile(
    r"workers|period|examples|width|depth|delay|(mean|max)_delay|warmup_updates|l2"
    r"|noise|target|(\w+_)?seconds|(\w+_)?rate|(first|relative)_step"
)


def loaded(file, question=""):
    return ConfigFile.load(f"{file}:{question}" if question else str(file))


def in_place(value, number):
    """This number, in an axis if the config has an axis here."""
    return [number] if isinstance(value, list) else number


@pytest.mark.parametrize(
    ("file", "question"), FORMS, ids=lambda value: getattr(value, "stem", value)
)
def test_a_config_admits_its_own_values_and_refuses_what_is_below_its_limits(
    file, question
):
    config = loaded(file, question)
    values = config.values
    config.check(values)
    for key in config.module.LIMITS:
        with pytest.raises(ValueError, match=rf"config\.{key} must be .*, got -1\."):
            config.check({key: in_place(values[key], -1)})
    keys = {key for key in values if USUAL.fullmatch(key)}
    assert keys <= {*config.module.LIMITS}


@pytest.mark.parametrize("stem", ["modulation", "guided"])
@pytest.mark.parametrize("mean", [1, 40])
def test_a_history_cuts_few_of_the_geometric_delays(stem, mean):
    config = loaded(FILES[0].with_stem(stem))
    made = config.experiment(config.with_values({"mean_delay": [mean]}))
    hyper = {"learning_rate": 0.1, "decay": 1.0, "mean_delay": mean, "law": "none"}
    tx = called(made.all_arms[0].training.make, hyper, jax.random.key(0))
    slots = [node.slots for node in histories(tx.init(jnp.zeros(2)))]
    depth = max(leaf.shape[0] for leaf in jax.tree.leaves(slots)) - 1
    draws = np.arange(10_000)
    chances = stats.geom.pmf(draws + 1, 1 / (1 + mean))
    # the mean of min(delay, depth), which is (1 - q^depth) mean, is nearly the mean
    cut = (np.minimum(draws, depth) * chances).sum()
    assert 0.98 * mean < cut < mean


def test_the_comparison_takes_the_delay_blind_twin_of_a_rule():
    config = loaded(FILES[0].with_stem("rules"))
    twin = "late updates, delay-blind twin"
    made = config.experiment(config.with_values({"stage": "short", "rules": [twin]}))
    assert {arm.labels["rule"] for arm in made.all_arms} == {"plain", twin}


LIMITED = """
from ml_collections import ConfigDict
from experiments.configs import at_least, positive

LIMITS = at_least(2, "least") | at_least(0, "floor") | positive("above")


def get_config():
    return ConfigDict(dict(least=2, floor=0.5, above=(0.1, 1.0), workers=0, seconds=-1))


def experiment(config):
    pass
"""


@pytest.mark.parametrize(
    ("key", "refused", "admitted"),
    [
        ("least", 1, 2),
        ("floor", -1e-9, 0.0),
        ("above", [0.1, 0.0], [1e-9]),
        ("above", [1e-60], [1e30]),  # is 0 in float32
        ("above", [float("inf")], [0.1]),
        ("floor", 1e40, float("inf")),
    ],
)
def test_a_limit_is_what_the_file_declares_and_does_not_follow_from_a_name(
    key, refused, admitted, tmp_path
):
    (tmp_path / "limited.py").write_text(LIMITED)
    config = loaded(tmp_path / "limited.py")
    config.check({key: admitted, "workers": -7, "seconds": -1})
    with pytest.raises(ValueError, match=rf"config\.{key} must "):
        config.check({key: refused})


def test_a_limit_of_a_key_that_the_config_lacks_is_refused(tmp_path):
    (tmp_path / "limited.py").write_text(LIMITED.replace('"floor")', '"flor")'))
    with pytest.raises(ValueError, match="`LIMITS` has 'flor', but the config has no"):
        loaded(tmp_path / "limited.py").check({})


def test_the_command_executes_a_config_file_once(tmp_path, monkeypatch):
    counted = f"with open({str(tmp_path / 'count')!r}, 'a') as file: file.write('x')\n"
    (tmp_path / "limited.py").write_text(counted + LIMITED)
    config = f"--config={tmp_path / 'limited.py'}"
    # sys.argv as in `python -c`; and a flag with the name of its opposite, --noquiet
    argv = ["-c", config, "--config.least=3", "--workdir=x", "--noquiet"]
    monkeypatch.setattr(sys, "argv", argv)
    with flagsaver.flagsaver():
        file = main._parse_flags(argv)
        assert file.changed(knobs(flags.FLAGS.config)) == {"least": [2, 3]}
    assert (tmp_path / "count").read_text() == "x"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_config_is_short_has_few_knobs_and_each_is_its_own(file):
    values = loaded(file).values
    assert 5 <= len(values) <= 15
    text = file.read_text()
    assert len(text.splitlines()) <= 135
    for key in values:
        assert (
            f"config.{key}" in text or f'config["{key}"]' in text or "config[" in text
        )


@pytest.mark.parametrize(
    ("file", "question"), QUESTIONS, ids=lambda value: getattr(value, "stem", value)
)
def test_a_config_makes_an_experiment_whose_claims_can_fail(file, question, tmp_path):
    source = loaded(file, question)
    config = source.config
    if file.stem == "real_trace":
        two = cluster.Cluster(2, cluster.exponential(1.0))
        trace = cluster.simulate(two, cluster.protocols.k_async(1), 50, seed=0)
        trace.save(tmp_path / "log.npz")
        config.trace = str(tmp_path / "log.npz")
    setup = source.experiment(config)
    assert isinstance(setup, Experiment)
    if file.stem == "real_trace":
        assert setup.updates == 50  # as many as its log has
    assert setup.question.endswith("?") and len(setup.question) <= 80
    assert setup.figures
    assert setup.effects
    stated = statements.about(source, config)
    assert stated.records
    texts = [one.text for one in [*stated.published, *stated.records]]
    assert len(set(texts)) == len(texts)
    for record in stated.records:
        assert record.tolerance <= abs(record.value) / 2
    # all that it trains can be traced; an arm of each kind, for a few updates
    kinds = {type(arm.training): arm for arm in setup.all_arms}
    short = dict(seeds=1, updates=2, seconds=None, examples=None, static=())
    for arm in kinds.values():
        arm = dataclasses.replace(arm, seconds=None, updates=None, contains=None)
        task = arm.task or setup.task
        names = {
            **arm.training.arguments(),
            **(arguments(task) if callable(task) else {}),
        }
        grid = {axis: values for axis, values in setup.grid.items() if axis in names}
        tuned = [axis for axis in setup.tuned_axes if axis in {**grid, **arm.grid}]
        alone = dict(training=None, arms=[arm], grid=grid, tuned=tuned)
        one = dataclasses.replace(setup, **alone, **short)
        assert programs.programs(one)


@pytest.mark.parametrize(
    ("name", "workers", "compared"),
    [
        ("workers", (1, 8), None),
        ("workers", (1, 8, 16, 64), (8, 16)),
        ("survival", (1, 8), None),
        ("survival", (1, 2, 8, 16, 64, 128), (8, 16, 64)),
    ],
)
def test_an_answer_compares_what_a_flag_has_left(name, workers, compared):
    file = ConfigFile.load(name)
    setup = file.experiment(file.with_values({"workers": workers}))
    expected = {} if compared is None else {"workers": compared}
    assert [effect.where for effect in setup.effects] == [expected] * len(setup.effects)


def test_the_answer_of_time_optimal_names_the_workers_that_it_compares():
    file = ConfigFile.load("time_optimal")
    setup = file.experiment(file.with_values({"workers": (128, 32, 64)}))
    most, other = setup.effects
    assert (most.where, most.name) == (
        {"workers": 128},
        "time to the target on 128 workers",
    )
    assert (other.against, other.name) == (
        {"workers": 32},
        "time to the target on 64 and 128 workers",
    )
