"""docs/book.md and the lists of two other files say what the kept table says."""

import math
import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from experiments import statements
from experiments.book import entries, page
from experiments.book.chapters import COUNTED_WITH, NOT_RUN, SYSTEMS
from experiments.book.entries import Entry, Status
from experiments.config_files import ConfigFile
from experiments.page import Statement, between_marks
from experiments.results import claims
from tests.experiments.page_text import Text


@pytest.fixture(scope="module")
def kept():
    """The entries of the kept table."""
    return page.read()[1]


def bound(*verdicts):
    row = dict(source="Doe (2020)", setting="a net", said="half", bound="at most 0.5")
    row |= dict(measured="0.4", seeds="5", p="", tried="more seeds", chosen="first")
    stated = [
        Statement(statement=f"number {i}", verdict=verdict, **row)
        for i, verdict in enumerate(verdicts)
    ]
    answer = "It <is> 2 * 3 | 4."
    run = Entry("softsync", "Why?", Status.RUN, answer, minutes=1.5, ran_on="a GPU")
    other = run._replace(config="default", ran_on="a CPU")
    return [run._replace(statements=stated), other]


def test_the_page_has_a_row_a_statement_and_markdown_is_escaped():
    text = page.markdown("full size; today", bound("reproduced", "undecided"))
    took = "Its runs took 2 minutes on a CPU and 2 minutes on a GPU."
    assert f"full size; today. {took}" in text
    assert "Verdict: **reproduced**." in text
    source = "Doe (2020); a net; said: half"
    assert f"| number 1 | {source} | at most 0.5 | 0.4; 5 seeds | undecided |" in text
    assert "number 0: more seeds" in text
    assert r"It \<is\> 2 \* 3 \| 4." in text
    assert text.index("Adam with late gradients") < text.index("n-softsync")


def with_p(verdict, p, name="softsync"):
    row = dict.fromkeys(Statement._fields, "") | dict(statement="It halves")
    one = Statement(**row | dict(verdict=verdict, p=p))
    below = one._replace(p="0.9")
    return Entry(name, "Why?", Status.RUN, "So.", statements=(one, below))


def test_a_headline_that_is_decided_alone_is_undecided_among_all():
    """Holm's correction of 0.01, 0.02, 0.03 is 0.03, 0.04 and max(0.04, 0.03)."""
    p_values = ("0.01", "0.02", "0.03")
    bound = [with_p("reproduced", p) for p in p_values]
    assert [one.verdict for one in entries.corrected(bound)] == ["reproduced"] * 3
    bound += [with_p("not reproduced", "0.04"), with_p("undecided", "1")]
    several = entries.corrected(bound)
    # the corrected p-values of all 5: 0.05, 0.08, 0.09, 0.09, 1
    assert [one.verdict for one in several] == ["reproduced", *["undecided"] * 4]
    assert several[0].among_all == "p = 0.05 among the 5 headlines that have one"
    note = "decided alone, but p = 0.08 among the 5 headlines that have one"
    assert several[1].among_all == note and several[4].among_all == ""
    below = [one.statements[1].verdict for one in several]
    assert below == [one.statements[1].verdict for one in bound]
    text = page.markdown("full size; today", several[1:2])
    assert f"Verdict: **undecided**; {note}." in text
    html = page.html("full size; today", several[1:2])
    assert f"The headline: {note}." in html


def test_a_headline_without_a_p_value_is_undecided_and_says_so():
    old, none = with_p("reproduced", ""), with_p("not tested", "")
    new = with_p("reproduced", "0.04")
    first, second, third = entries.corrected([old, none, new])
    assert (first.verdict, first.among_all) == (
        "undecided",
        "decided by its interval, without a p-value",
    )
    assert (second.verdict, second.among_all) == ("not tested", "")
    assert third.among_all == "p = 0.04 among the 1 headlines that have one"


def test_the_page_counts_the_headlines_that_were_chosen_when_results_were_known():
    """It reads the field `chosen`, and not the text of the notes."""
    bound = [with_p("reproduced", "0.01"), with_p("undecided", "")]
    bound += [with_p("undecided", ""), with_p("undecided", "")]
    for n, chosen in enumerate(("later", "later", "unseen", "first")):
        first, below = bound[n].statements
        first = first._replace(chosen=chosen)
        below = below._replace(chosen="later")
        bound[n] = bound[n]._replace(statements=(first, below))
    text = " ".join(page.markdown("full size; today", bound).split())
    note = "2 of the 4 headlines, and 1 of the 1 that have a verdict, were chosen when"
    assert note in text and "; 1 more were chosen then by a" in text


def test_a_demonstration_is_no_headline_and_not_among_those_that_are_corrected():
    tested = with_p("reproduced", "0.04")
    above, below = tested.statements
    above = above._replace(verdict="demonstration")
    shown = tested._replace(statements=(above, below))
    first, second = entries.corrected([shown, tested])
    assert (first.headline, first.verdict, first.among_all) == (
        None,
        "demonstration",
        "",
    )
    assert first.further == [below]
    assert second.among_all == "p = 0.04 among the 1 headlines that have one"
    last = tested._replace(statements=(*tested.statements, above))
    assert (last.headline, last.further) == (tested.statements[0], [below])


def test_the_first_row_of_a_config_gets_the_corrected_verdict_of_its_headline(tmp_path):
    """Holm's correction of 0.01, 0.04 and 0.5 is 0.03, 0.08 and 0.5."""
    both = [with_p("reproduced", "0.01", "dana")]
    both.append(with_p("not reproduced", "0.04", "gossip"))
    path = tmp_path / "book.csv"
    entries.table(both).to_csv(path, index=False)
    more = [*both, with_p("undecided", "0.5")]
    page.write_corrected(entries.corrected(more), path)
    table = pd.read_csv(path, dtype=str, na_filter=False)
    each = list(zip(table["config"], table["corrected"], strict=True))
    below = [(name, "") for name in ("dana", "gossip")]
    assert each == [("dana", "reproduced"), below[0], ("gossip", "undecided"), below[1]]


def test_the_kept_table_has_the_corrected_verdict_beside_each_headline(kept):
    table = pd.read_csv(page.TABLE, dtype=str, na_filter=False)
    verdicts = {one.config: one.headline.verdict for one in kept if one.headline}
    for config, rows in table.groupby("config", sort=False):
        first, *others = rows["corrected"]
        assert first == verdicts.get(config, "")
        assert not any(others)


def test_the_correction_of_corrected_entries_is_the_same():
    bound = [with_p("reproduced", "0.01"), with_p("reproduced", "0.2")]
    once = entries.corrected(bound)
    assert [one.verdict for one in entries.corrected(once)] == [
        one.verdict for one in once
    ]


def rows_of(entries):
    """{chapter: {verdict: number of systems}}, from the table of the README."""
    lines = [line.split("|")[1:-1] for line in page.readme_table(entries).split("\n")]
    head, _, *rows = [[cell.strip() for cell in line] for line in lines]
    verdicts = [dict(zip(head[1:], cells, strict=True)) for _, *cells in rows]
    return {
        name: {verdict: int(cell) for verdict, cell in counts.items() if cell}
        for (name, *_), counts in zip(rows, verdicts, strict=True)
    }


@pytest.mark.parametrize(
    ("verdicts", "name"),
    [
        (("reproduced", "not tested"), "reproduced"),
        (("same direction", "undecided", "reproduced"), "same direction"),
        (("undecided", "not reproduced"), "undecided"),
        (("not reproduced",), "not reproduced"),
        (("not tested", "reproduced"), "no verdict"),
        (("demonstration", "reproduced"), "no verdict"),
        (("same direction", "demonstration"), "same direction"),
    ],
)
def test_the_readme_s_table_counts_systems_by_chapter_and_verdict(verdicts, name):
    server = "Protocols of a server"
    assert rows_of(bound(*verdicts)) == {
        f"[{server}](docs/book.md#protocols-of-a-server)": {name: 1},
        "all": {name: 1},
        "further statements": Counter(
            "no verdict" if one == "not tested" else one
            for one in verdicts[1:]
            if one != "demonstration"
        ),
    }


def test_the_readme_s_table_has_each_system_of_the_kept_table_once(kept):
    *chapters, whole, below = rows_of(kept).values()
    assert sum(map(Counter, chapters), Counter()) == whole
    with_a_claim = [one for one in kept if one.statements]
    parts = [one for one in with_a_claim if one.config in COUNTED_WITH]
    assert sum(whole.values()) == len(with_a_claim) - len(parts)
    assert len(parts) == len(COUNTED_WITH) and len(kept) == len(SYSTEMS)
    verdicts = [one.verdict for entry in kept for one in entry.statements]
    verdicts = [one for one in verdicts if one != claims.DEMONSTRATION]
    headlines = [entry for entry in kept if entry.headline]
    assert sum(below.values()) == len(verdicts) - len(headlines)


def test_a_config_that_is_counted_with_another_one_has_no_headline():
    """The correction for several tests leaves its p-value out."""
    part, whole = with_p("reproduced", "0.04", "tradeoff"), with_p("reproduced", "0.04")
    first, second = entries.corrected([part, whole])
    assert (first.headline, first.verdict) == (None, "counted with n-softsync")
    assert first.further == [*part.statements]
    assert second.among_all == "p = 0.04 among the 1 headlines that have one"
    assert rows_of([part, whole])["all"] == {"reproduced": 1}
    assert sum(rows_of([part, whole])["further statements"].values()) == 3


def test_configs_that_count_once_have_a_source_in_common_and_one_headline(kept):
    paper = re.compile(r"arXiv:[\d.]+|\w+, [\w, ]+ \(\d{4}\), HPC Asia")
    papers = {
        entry.config: {*paper.findall(" ".join(one.source for one in entry.statements))}
        for entry in kept
    }
    for part, whole in COUNTED_WITH.items():
        assert papers[part] & papers[whole] and whole not in COUNTED_WITH
    claimed = [(one.headline.source, one.headline.said) for one in kept if one.headline]
    assert len({*claimed}) == len(claimed)


def test_each_headline_says_where_its_source_says_it(kept):
    places = re.compile("abstract|body|Section|[Tt]able|Theorem|README|issue")
    sources = [one.headline.source for one in kept if one.headline]
    assert [source for source in sources if not places.search(source)] == []


def test_of_the_three_laws_of_times_the_one_that_favors_the_claim_least_decides():
    """E[max of 8 times] / E[a time]; E[max] of Pareto: 8! gamma(1/2) / gamma(17/2)."""
    slowest = {}
    for name in ("k_async", "k_async:shifted", "k_async:pareto"):
        file = ConfigFile.load(entries.source(name))
        waits, goes_on = (
            file.module.update_seconds(file.config, *arm)
            for arm in (("K-sync", 8), ("K-async", 1))
        )
        slowest[name] = waits / (8 * goes_on)
    exponential = sum(1 / n for n in range(1, 9))
    pareto = math.factorial(8) * math.gamma(0.5) / math.gamma(8.5) / 2
    np.testing.assert_allclose(
        [*slowest.values()], [exponential, (1 + exponential) / 2, pareto], rtol=1e-9
    )
    assert COUNTED_WITH["k_async"] == min(slowest, key=slowest.get)


def test_the_table_is_between_its_marks():
    begin, end = "<!-- book: begin -->", "<!-- book: end -->"
    readme = f"a\n{begin}\nold\n{end}\nb\n"
    once = between_marks("book", readme, "new")
    assert "old" not in once and once.startswith("a\n") and once.endswith("\nb\n")
    assert between_marks("book", once, "new") == once


def test_the_list_of_configs_has_a_row_a_file_with_its_forms_and_times():
    run = Entry("k_async", "Why?", Status.RUN, minutes=0.05, ran_on="1 x cpu, jax 1.2")
    form = run._replace(config="k_async:pareto", ran_on="1 x NVIDIA H200, jax 0.11.2")
    pod = Entry("imagenet", "Why?", Status.NOT_HERE)
    assert page.configs_list([run, form, pod]).splitlines()[2:] == [
        "| `configs/k_async.py` | Why? (`:pareto`) | 10 s |",
        "| `configs/imagenet.py` | Why? | not run here |",
    ]
    assert "| 5 min, NVIDIA H200 |" in page.configs_list([form._replace(minutes=4.7)])


def made(path, note, answers, size="full"):
    """The path of a new table: of each name, a run with this answer."""
    runs = [Entry(name, "Why?", Status.RUN, answer) for name, answer in answers.items()]
    table = entries.table(runs).assign(size=size, about=note)
    table.to_csv(path, index=False)
    return path


def test_a_run_of_some_configs_replaces_their_entries_and_keeps_the_others(
    tmp_path, monkeypatch
):
    old = dict.fromkeys(("default", "softsync", "dana"), "old")
    monkeypatch.setattr(page, "TABLE", made(tmp_path / "kept.csv", "then", old))
    new = {"dana": "new", "softsync": "new"}
    page.keep(made(tmp_path / "book.csv", "now", new))
    note, kept = page.read(page.TABLE)
    assert note == "full size; then; now"
    assert {one.config: one.answer for one in kept} == old | new
    assert [one.config for one in kept] == [one for one in SYSTEMS if one in old]


def test_a_table_of_a_small_run_is_refused_and_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(
        page, "TABLE", made(tmp_path / "kept.csv", "then", {"dana": "old"})
    )
    before = page.TABLE.read_text()
    path = made(tmp_path / "book.csv", "today", {"dana": "new"}, size="small")
    with pytest.raises(ValueError, match="must be of a full run, got the sizes small"):
        page.keep(path)
    assert page.TABLE.read_text() == before


def test_the_page_and_the_lists_are_of_the_kept_table():
    note, kept = page.read()
    assert page.PAGE.read_text() == page.markdown(note, kept)
    for path, lines in (
        (page.README, page.readme_table(kept)),
        (page.CONFIGS, page.configs_list(kept)),
    ):
        assert between_marks("book", path.read_text(), lines) == path.read_text()
    assert {entry.config for entry in kept} == set(SYSTEMS)


def test_no_statement_of_the_kept_table_is_lost_on_a_page():
    """Every text of the table is on book.html and in docs/book.md."""
    table = pd.read_csv(page.TABLE, dtype=str, na_filter=False)
    note, _ = page.read()
    bound = entries.from_table(table)
    words = str(Text(page.html(note, bound)))
    text = " ".join(page.PAGE.read_text().replace("\\", "").split())
    shown = ("question", "answer", "reason", "statement", "source", "setting", "said")
    shown += ("bound", "measured", "verdict", "tried", "system")
    for row in table.to_dict("records"):
        texts = {name: " ".join(row[name].replace("\\", "").split()) for name in shown}
        assert [name for name, part in texts.items() if part not in words] == []
        assert [name for name, part in texts.items() if part not in text] == []
    counted = sum(len(entry.statements) for entry in bound)
    assert counted == (table["statement"] != "").sum() >= 100


def test_each_kept_run_says_what_it_ran_on(kept):
    for entry in kept:
        ran = re.fullmatch(r"\d+ x .+, jax [\d.]+", entry.ran_on) is not None
        assert ran == (entry.minutes > 0)


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name not in NOT_RUN])
def test_the_kept_statements_are_those_of_the_configs(name, kept):
    (entry,) = (one for one in kept if one.config == name)
    if entry.status is Status.NOT_YET:
        pytest.skip("its full run is still to be done")
    source = entries.source(name)
    file = ConfigFile.load(source)
    stated = statements.about(file, file.config).published
    asked = [
        (row.text, row.source, row.said, row.expected, row.chosen) for row in stated
    ]
    kept_rows = [
        (row.statement, row.source, row.said, row.bound, row.chosen)
        for row in entry.statements
    ]
    assert kept_rows == asked
    assert {row.verdict for row in entry.statements} <= {
        claims.REPRODUCED,
        claims.SAME_DIRECTION,
        claims.UNDECIDED,
        claims.NOT_REPRODUCED,
        claims.NOT_TESTED,
        claims.DEMONSTRATION,
        str(Status.NOT_YET),
    }
