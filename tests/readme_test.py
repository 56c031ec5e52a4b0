"""The code of README.md runs, and what it promises exists."""

import doctest
import inspect
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from experiments import claims, run, statements
from experiments.config_files import ConfigFile

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = sorted(
    path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts
)


def blocks(path):
    """The Python blocks of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


def after_doctests(path):
    """The variables after the doctests of a page, all of which pass."""
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    text = (ROOT / path).read_text()
    test = parser.get_doctest(text, {}, path, path, 0)
    runner.run(test, clear_globs=False)
    assert runner.summarize().failed == 0
    return test.globs


(FIRST,) = blocks("README.md")
RECIPES, SERVERS = blocks("docs/howto/recipes.md")
OWN_CONFIG, OWN_STATEMENTS = (
    block for block in blocks("docs/experiments.md") if ">>>" not in block
)


def test_readme_is_short():
    assert len(README.splitlines()) <= 120
    assert len(FIRST.splitlines()) <= 3


def test_the_first_twenty_lines_have_what_it_is_for_and_the_line_to_adopt():
    first = "\n".join(README.splitlines()[:20])
    assert FIRST in first and "`pip install 'git+https" in first
    rows = [line.split("|")[1:-1] for line in first.splitlines() if line[:1] == "|"]
    assert len(rows) == 2 + 4
    assert all(cell.strip() for row in rows for cell in row)


def test_the_lines_to_adopt_make_gradients_as_late_as_they_say():
    names = {}
    exec(FIRST, names)
    params = jnp.zeros(3)
    state = names["tx"].init(params)
    for _ in range(6):
        _, state = names["tx"].update(jnp.ones(3), state, params)
    assert int(state.gradients.pushed) == 6
    assert int(dj.staleness(state)) == 4


def test_the_first_step_trains_and_so_does_the_cluster_s_example():
    names = after_doctests("docs/start/first_step.md")
    assert int(names["opt_state"].gradients.pushed) == 200
    assert names["value"] < 1e-3
    losses, seconds = names["losses"], names["seconds"]
    assert seconds.shape == losses.shape == (1000,)
    assert losses[-1] < 1e-3 * losses[0]


def test_the_page_of_step_sizes_has_the_limits_of_theory():
    names = after_doctests("docs/howto/step_size.md")
    assert names["best"].workers < names["best"].limit
    # the Hessian 2 * ones([3, 3]) has the eigenvalue 6; no delay, momentum 0.9
    limit = 2 * (1 + 0.9) / 6
    assert f"\n0: {limit:.4f}\n" in (ROOT / "docs/howto/step_size.md").read_text()


def test_25_names_are_listed_and_exist():
    listed = README.partition("## What is there")[2].partition("Beside these")[0]
    rows = [line.split("|")[2] for line in listed.splitlines() if line.startswith("|")]
    names = re.findall(r"`([\w.]+)`", " ".join(rows))
    assert len(names) == len(set(names)) == 25
    for name in names:
        value = dj
        for part in name.split("."):
            value = getattr(value, part)
        assert callable(value)


def test_as_many_configs_are_listed_as_there_are():
    listed = (ROOT / "docs" / "experiments.md").read_text()
    configs = {path.stem for path in (ROOT / "configs").glob("*.py")} - {"__init__"}
    assert set(re.findall(r"^\| `configs/(\w+)\.py`", listed, re.MULTILINE)) == configs
    assert f"its {len(configs)} configs" in README


def test_as_many_protocols_are_named_as_there_are():
    described = re.search(r"(\d+) protocols from hardsync", README)[1]
    assert described in (ROOT / "CHANGELOG.md").read_text()
    protocols = inspect.getmembers(dj.cluster.protocols, inspect.isfunction)
    assert int(described) == len(protocols)


def recipes():
    """{comment of a recipe: its transformation}."""
    names, result = {}, {}
    exec("import jax, optax\nimport delayjax as dj", names)
    for text in re.split(r"\n\n", RECIPES):
        lines = text.splitlines(keepends=True)
        comment = "".join(line for line in lines if line[0] == "#")
        result[comment] = eval(text.removeprefix(comment), names)
    return result


def test_the_recipes_are_transformations():
    for tx in recipes().values():
        assert hasattr(tx, "init") and hasattr(tx, "update")


def test_the_recipe_of_normalized_momentum_is_its_equation():
    grads = np.random.default_rng(0).normal(size=(100, 5))
    x, m = np.zeros(5), np.zeros(5)
    for k, g in enumerate(grads):
        a = 1 / np.sqrt(max(k, 1))
        m = (1 - a) * m + a * g
        x = x - 0.1 * (k + 1) ** -0.75 * m / (np.linalg.norm(m) + 1e-10)
    with jax.enable_x64(True):
        (tx,) = [recipe for text, recipe in recipes().items() if "normalized" in text]
        params = jnp.zeros(2), jnp.zeros(3)
        state = tx.init(params)
        for g in grads:
            updates, state = tx.update((jnp.asarray(g[:2]), jnp.asarray(g[2:])), state)
            params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(np.concatenate(params), x, rtol=0, atol=1e-12)


def test_the_recipes_of_servers_train_with_the_deltas_of_clients():
    names = {}
    exec("import jax, jax.numpy as jnp, optax\nimport delayjax as dj", names)
    client = "dj.local_training(grad_fn, optax.sgd(0.1), 4)"
    assert f"`{client}`" in (ROOT / "docs/howto/recipes.md").read_text()
    exec("def grad_fn(x, batch, key): return x @ x, x - batch.mean()", names)
    exec(f"client = {client}", names)
    spec = dj.cluster.Cluster(6, dj.cluster.exponential(1.0))
    rule = dj.cluster.protocols.fedbuff(1, concurrency=3)
    names["trace"] = dj.cluster.simulate(spec, rule, 60, seed=0)
    for text in re.split(r"\n\n", SERVERS):
        training = eval(re.sub(r"^#.*\n", "", text, flags=re.MULTILINE), names)
        state = training.init(jnp.zeros(2), jax.random.key(0))
        state, _ = training.run(state, np.ones((60, 1, 8), np.float32))
        assert 0 < abs(state.params - 1.0).max() < 0.8, text


def test_a_config_of_ones_own_answers_and_its_statements_are_measured(
    tmp_path,
):
    (tmp_path / "momentum.py").write_text(OWN_CONFIG)
    file = ConfigFile.load(str(tmp_path / "momentum.py"))
    config = file.config
    config.updates, config.learning_rate, config.seeds = 10, (0.01, 0.1), 2
    experiment = file.experiment(config)
    assert experiment.question == file.module.__doc__
    result = run(experiment, str(tmp_path / "run"))
    assert len(result.results) == 2 * 2 * 2 * 2
    (tmp_path / "statements").mkdir()
    (tmp_path / "statements" / "momentum.py").write_text(OWN_STATEMENTS)
    stated = statements.about(file, config)
    (judged,) = claims.judge(stated.published, result)
    (compared,) = claims.compare(stated.records, result)
    assert judged.measured is not None and compared.measured is not None
    (answer,) = result.answers
    assert answer.table["momentum"].tolist() == [0.0] * 2
    assert "compared with momentum=0.9" in str(result)


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_path_that_is_named_exists(path):
    text = path.read_text()
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    linked = re.findall(r"\]\(([^)\s]+)\)", prose)
    for link in linked:
        if re.match(r"https?://", link):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
    configs = re.findall(r"configs/\w+\.py", text)
    tests = re.findall(r"tests/(?:\w+/)*\w+\.py", text)
    for name in {*configs, *tests} - {"tests/x_test.py"}:
        assert (ROOT / name).exists(), name


def anchors(path):
    """The anchors that GitHub and the site give to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_every_page_of_the_site_is_in_its_contents():
    listed = set()
    for page in PAGES:
        trees = re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL)
        lines = [line for tree in trees for line in tree.splitlines()]
        entries = [line for line in lines if line and not line.startswith(":")]
        listed |= {(page.parent / f"{entry}.md").resolve() for entry in entries}
    pages = {page.resolve() for page in PAGES} - {ROOT / "docs" / "index.md"}
    examples = set((ROOT / "examples").glob("*.md"))
    assert listed == pages | examples


def test_the_changelog_has_the_version():
    assert dj.__version__ in (ROOT / "CHANGELOG.md").read_text()


def test_the_newcomer_s_lines_stand_behind_their_comments():
    run, test = re.findall(
        r"<!-- newcomer: (?:run|test) -->\n```bash\n(.*)\n```", README
    )
    assert run.endswith("--config=configs/default.py --workdir=runs/default")
    assert test.endswith(".venv/bin/python -m pytest -q -n 2")
