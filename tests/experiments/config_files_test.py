"""Every config file makes its experiment, of few knobs and of claims that can fail."""

import dataclasses
from pathlib import Path

import pytest

from delayjax import cluster
from experiments import Experiment, configs
from experiments.running import programs
from experiments.training.rules import arguments

FILES = sorted(Path(__file__).parents[2].joinpath("configs").glob("[!_]*.py"))
NEED_DATA = ("imagenet", "tokens_pod")  # in pod_configs_test.py
QUESTIONS = [
    (file, question)
    for file in FILES
    if file.stem not in NEED_DATA
    for question in {
        "k_async": ("exponential", "shifted", "pareto"),
        "stability_edge": ("breast_cancer", "quadratic", "digits_mlp"),
        "time_optimal": ("sqrt", "linear"),
        "workers": ("curvature", "spectrum"),
    }.get(file.stem, ("",))
]


def config_of(file, question=""):
    get_config = configs.module_of(str(file)).get_config
    return get_config(question) if question else get_config()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_config_has_few_knobs_and_each_is_its_own(file):
    knobs = configs.knobs(config_of(file))
    assert 5 <= len(knobs) <= 15
    text = file.read_text()
    for key in knobs:
        assert (
            f"config.{key}" in text or f'config["{key}"]' in text or "config[" in text
        )


@pytest.mark.parametrize(
    ("file", "question"), QUESTIONS, ids=lambda own: getattr(own, "stem", own)
)
def test_a_config_makes_an_experiment_whose_claims_can_fail(file, question, tmp_path):
    config = config_of(file, question)
    if file.stem == "real_trace":
        two = cluster.Cluster(2, cluster.exponential(1.0))
        trace = cluster.simulate(two, cluster.protocols.k_async(1), 50, seed=0)
        trace.save(tmp_path / "log.npz")
        config.trace = str(tmp_path / "log.npz")
    made = configs.module_of(str(file)).experiment(config)
    assert isinstance(made, Experiment)
    assert made.question.endswith("?") and len(made.question) <= 80
    assert made.figures
    assert made.answer is not None and made.records
    stated = [*made.published, *made.records]
    texts = [own.text for own in stated]
    assert len(set(texts)) == len(texts)
    for record in made.records:
        assert record.spread < abs(record.value) or record.value == 0
    # what it trains can be traced; an arm of each kind, for a few updates
    kinds = {type(arm.training): arm for arm in made.all_arms}
    short = dict(seeds=1, updates=2, seconds=None, examples=None, static=())
    for arm in kinds.values():
        arm = dataclasses.replace(arm, seconds=None)
        task = arm.task or made.task
        taken = {
            **arm.training.arguments(),
            **(arguments(task) if callable(task) else {}),
        }
        grid = {axis: values for axis, values in made.grid.items() if axis in taken}
        one = dataclasses.replace(made, training=None, arms=[arm], grid=grid, **short)
        assert programs.programs(one)
