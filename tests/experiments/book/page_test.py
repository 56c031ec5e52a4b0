"""docs/book.md and the lists of two other files say what the kept table says."""

import pandas as pd
import pytest

from experiments import configs
from experiments.book import entries, page
from experiments.book.chapters import NOT_RUN, SYSTEMS
from experiments.results import claims


def table(*verdicts):
    config = ["softsync"] * len(verdicts)
    rows = {
        "config": [*config, "default"],
        "system": ["n-softsync" for _ in config] + ["Adam with late gradients"],
        "question": "Why?",
        "answer": "It <is> 2 * 3 | 4.",
        "minutes": "1.5",
        "ran_on": [*("a GPU" for _ in config), "a CPU"],
        "statement": [f"number {i}" for i, _ in enumerate(verdicts)] + [""],
        "source": "Doe (2020)",
        "setting": "a net",
        "said": "half",
        "bound": "at most 0.5",
        "measured": "0.4",
        "verdict": [*verdicts, ""],
        "tried": ["more seeds" for _ in config] + [""],
    }
    return pd.DataFrame(rows)


def test_the_page_has_a_row_a_statement_and_markdown_is_escaped():
    text = page.text("full size; today", table("reproduced", "undecided"))
    took = "Its runs took 2 minutes on a CPU and 2 minutes on a GPU."
    assert f"full size; today. {took}" in text
    assert "Verdict: **in part**." in text
    said = "number 1 (“half”: Doe (2020); a net) | at most 0.5 | 0.4 | undecided |"
    assert said in text
    assert "number 0: more seeds" in text
    assert r"It \<is\> 2 \* 3 \| 4." in text
    assert text.index("Adam with late gradients") < text.index("n-softsync")


def test_the_list_is_between_its_marks_and_has_each_system_once():
    found = page.readme_list(table("not reproduced"))
    assert found == (
        "- **Not reproduced** (1): n-softsync (1 of 1).\n"
        "- **No statement** (1): Adam with late gradients."
    )
    several = table("reproduced", "undecided", "not testable here", "reproduced")
    assert "**In part** (1): n-softsync (2 of 3)." in page.readme_list(several)
    several = table("undecided", "not reproduced", "undecided")
    assert "**Not reproduced** (1): n-softsync (1 of 3)." in page.readme_list(several)
    readme = f"a\n{page.BEGIN}\nold\n{page.END}\nb\n"
    once = page.between_marks(readme, "new")
    assert "old" not in once and once.startswith("a\n") and once.endswith("\nb\n")
    assert page.between_marks(once, "new") == once


def test_the_list_of_configs_has_a_row_a_file_with_its_forms_and_times():
    runs = table("reproduced", "undecided")
    runs["config"] = ["k_async", "k_async:pareto", "imagenet"]
    runs["minutes"] = ["0.05", "9.0", ""]
    runs["ran_on"] = ["1 x cpu, jax 0.10.2", "1 x NVIDIA H200, jax 0.11.2", ""]
    assert page.configs_list(runs).splitlines()[2:] == [
        "| `configs/k_async.py` | Why? (`:pareto`) | 10 s |",
        "| `configs/imagenet.py` | Why? | not run here |",
    ]
    runs["minutes"] = ["4.7", "9.0", ""]
    runs["ran_on"] = ["1 x NVIDIA H200, jax 0.11.2", "", ""]
    assert "| 5 min, NVIDIA H200 |" in page.configs_list(runs)


def test_a_table_of_a_small_run_is_refused(tmp_path):
    path = tmp_path / "book.csv"
    path.write_text("# small size; today\nconfig\ndefault\n")
    with pytest.raises(ValueError, match="must be of a full run, got 'small size"):
        page.read(path)


def test_the_page_and_the_lists_are_of_the_kept_table():
    about, kept = page.read()
    assert page.PAGE.read_text() == page.text(about, kept)
    for path, lines in (
        (page.README, page.readme_list(kept)),
        (page.CONFIGS, page.configs_list(kept)),
    ):
        assert page.between_marks(path.read_text(), lines) == path.read_text()
    assert set(kept["config"]) == set(SYSTEMS)


def test_each_kept_run_says_what_it_ran_on():
    _, kept = page.read()
    ran = kept["minutes"].astype(float) > 0
    assert ran.equals(kept["ran_on"].str.fullmatch(r"\d+ x .+, jax [\d.]+"))


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name not in NOT_RUN])
def test_the_kept_statements_are_those_of_the_configs(name):
    _, kept = page.read()
    rows = kept[kept["config"] == name]
    if rows["answer"].iloc[0] == entries.NOT_YET:
        pytest.skip("its full run is still to be done")
    rows = rows[rows["statement"] != ""]
    module = configs.module_of(entries.source(name))
    made = module.experiment(configs.own_config(entries.source(name)))
    asked = [(own.text, own.source, own.said, own.expected) for own in made.published]
    columns = ["statement", "source", "said", "bound"]
    assert [tuple(row) for row in rows[columns].to_numpy()] == asked
    assert set(rows["verdict"]) <= {
        claims.REPRODUCED,
        claims.UNDECIDED,
        claims.NOT_REPRODUCED,
        claims.NOT_TESTABLE,
    }
