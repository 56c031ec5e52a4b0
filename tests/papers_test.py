"""The index from papers to functions: it has every paper that a docstring cites."""

from pathlib import Path

import papers
import pytest

import delayjax

KNOWN = papers.titles()


@pytest.mark.parametrize("number", sorted({*KNOWN, *papers.cited()}))
def test_each_paper_of_a_docstring_has_a_title_and_no_title_is_left_over(number):
    assert number in papers.cited(), "no docstring cites it: papers.toml"
    assert number in KNOWN, "docs/_ext/papers.toml needs its title, authors and year"
    assert set(KNOWN[number]) == {"title", "authors", "year"}


@pytest.mark.parametrize(
    "full, text", [pair for pair in papers.docstrings() if "arXiv:" in pair[1]]
)
def test_each_docstring_with_an_arxiv_number_is_in_the_index(full, text):
    name = full.replace("delayjax.", "`dj.", 1) + "`"
    lines = papers.listing().splitlines()
    for number in papers._NUMBER.findall(text):
        (line,) = [line for line in lines if f"[arXiv:{number}]" in line]
        assert name in line


def test_papers_without_a_number_are_there_as_their_docstrings_cite_them():
    listing = papers.listing()
    assert "- Ho et al., A stale synchronous parallel parameter server, NIPS 2013" in (
        listing
    )
    assert "`dj.stability.Dynamics.step_limit`" in listing


def test_the_newest_year_comes_first():
    years = [line[3:] for line in papers.listing().splitlines() if line[:3] == "## "]
    assert years[:-1] == sorted(years[:-1], reverse=True)


def test_no_paper_is_cited_by_private_code_alone():
    sources = Path(delayjax.__file__).parent.rglob("*.py")
    numbers = {n for path in sources for n in papers._NUMBER.findall(path.read_text())}
    assert numbers == set(papers.cited())
