"""What README.md shows runs."""

import re
from pathlib import Path

import jax
import pytest

from configs import default
from experiments import build

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
FIRST, CLUSTER, LIMITS, OWN_TASK, RECIPES = re.findall(
    r"```python\n(.*?)```", README, re.DOTALL
)


def test_the_first_example_trains_and_is_short():
    names = {}
    exec(FIRST, names)
    assert int(names["opt_state"].gradients.pushed) == 1
    assert len([line for line in FIRST.splitlines() if line.strip()]) <= 12


def test_the_cluster_s_example_trains():
    names = {}
    exec(FIRST, names)
    exec(CLUSTER, names)
    seconds, loss = names["loss_over_time"]
    assert seconds.shape == loss.shape == (1000,)
    assert loss[-1] < 1e-3 * loss[0]


def test_the_limits_are_what_their_comment_says(capsys):
    names = {}
    exec(FIRST, names)
    exec(LIMITS, names)
    *limits, best = capsys.readouterr().out.splitlines()
    listed = re.search(r"# ([\d., ]+):", LIMITS)[1].split(", ")
    for limit, digits in zip(limits, listed, strict=True):
        assert f"{float(limit):.{len(digits) - 2}f}" == digits
    fastest, many = re.search(
        r"# (\d+) are fastest, (\d+) may diverge", LIMITS
    ).groups()
    assert best.startswith(f"OptimalWorkers(workers={fastest}, ")
    assert f"limit={many}." in best


def test_the_recipes_are_transformations():
    names = {}
    exec(FIRST, names)
    for line in re.split(r"\n\n", RECIPES):
        tx = eval(re.sub(r"^#.*\n", "", line), names)
        assert hasattr(tx, "init") and hasattr(tx, "update")


def test_a_task_of_ones_own_is_forty_lines_and_trains(tmp_path, monkeypatch):
    (tmp_path / "my_task.py").write_text(OWN_TASK)
    monkeypatch.syspath_prepend(tmp_path)
    config = default.get_config()
    config.task.name = "my_task:make"
    config.metric = "test_loss"
    task = build.task(config)
    params = task.init(jax.random.key(0))
    batch = jax.tree.map(lambda leaf: leaf[0], task.batches(0, 0, 1))
    grads = jax.grad(task.loss)(params, batch)
    assert any(leaf.any() for leaf in jax.tree.leaves(grads))
    assert len(OWN_TASK.splitlines()) <= 44


def test_a_task_without_accuracy_says_what_to_ask_for(tmp_path, monkeypatch):
    (tmp_path / "my_task.py").write_text(OWN_TASK)
    monkeypatch.syspath_prepend(tmp_path)
    config = default.get_config()
    config.task.name = "my_task:make"
    with pytest.raises(ValueError, match=r"config\.metric is 'test_accuracy', but"):
        build.task(config)


def test_every_path_that_is_named_exists():
    linked = re.findall(r"\]\(([^)]+)\)", README)
    configs = re.findall(r"configs/\w+\.py", README)
    for path in {*linked, *configs}:
        assert (ROOT / path.partition("#")[0]).exists(), path
