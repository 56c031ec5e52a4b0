"""The index from papers to functions: it has every paper that a docstring cites."""

import re
from pathlib import Path

import papers

import delayjax

KNOWN = papers.years()


def test_each_paper_of_a_docstring_has_an_entry_and_no_entry_is_left_over():
    """docs/papers.bib needs title, authors and year of each cited paper."""
    assert set(papers.cited()) == set(KNOWN)


def test_each_entry_has_a_title_authors_a_year_and_its_number():
    entries = re.split(r"(?m)^@", papers.BIB.read_text())[1:]
    assert len(entries) == len(KNOWN)
    for entry in entries:
        key = re.match(r"misc\{([\d.]+),\n", entry)[1]
        fields = dict(re.findall(r"(?m)^  (\w+) = \{(.+)\},$", entry))
        assert set(fields) == {"author", "title", "year", "eprint", "archiveprefix"}
        assert fields["eprint"] == key and fields["archiveprefix"] == "arXiv"


def functions_of(number):
    """What the index says below a paper."""
    _, _, after = papers.listing().partition(f"key == '{number}'\n```\n\n")
    return after.partition("\n\n")[0]


def test_each_docstring_with_an_arxiv_number_is_in_the_index():
    for full, text in papers.docstrings():
        name = full.replace("delayjax.", "`dj.", 1) + "`"
        for number in papers.NUMBER.findall(text):
            assert name in functions_of(number), f"{full}: {number}"


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
    numbers = {n for path in sources for n in papers.NUMBER.findall(path.read_text())}
    assert numbers == set(papers.cited())


def test_no_first_line_has_a_number_for_tables_of_names_have_no_footnotes():
    firsts = [(full, text.partition("\n\n")[0]) for full, text in papers.docstrings()]
    assert [full for full, first in firsts if papers.NUMBER.search(first)] == []
