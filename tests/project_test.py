"""Pages made from files: changelog, contributing, citation; and the requirements."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import delayjax

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", ["changelog", "contributing", "citation"])
def test_each_file_of_the_project_has_a_page_that_the_site_lists(name):
    assert (DOCS / "project" / f"{name}.md").exists()
    assert f"\nproject/{name}\n" in (DOCS / "index.md").read_text()


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md"])
def test_the_links_of_a_file_lead_to_pages(name):
    page = DOCS / "project" / name.lower()
    included = f"```{{include}} ../../{name}\n:relative-docs: docs/\n```\n"
    assert page.read_text() == included
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text()):
        is_page = target.startswith("docs/") and (ROOT / target).exists()
        assert target.startswith("https://") or is_page, target


def test_the_page_cites_what_citation_cff_describes_with_the_version():
    entry = (DOCS / "project" / "citation.md").read_text()
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert f"title   = {{{cff['title']}}}," in entry
    authors = " and ".join(f"{{{author['name']}}}" for author in cff["authors"])
    assert f"author  = {{{authors}}}," in entry
    assert f"url     = {{{cff['repository-code']}}}," in entry
    assert f"{{License: {cff['license']}}}" in entry
    assert "version = {|release|}," in entry  # Sphinx writes delayjax.__version__
    assert cff["version"] == delayjax.__version__


def test_every_requirement_of_jax_leaves_out_the_versions_that_are_broken():
    project_ = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = project_["dependencies"], *project_["optional-dependencies"].values()
    required = [Requirement(text) for given in lists for text in given]
    bounds = {item.specifier for item in required if item.name == "jax"}
    assert len(bounds) == 1
    (bound,) = bounds
    known = "0.10.1", "0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.12.0"
    admitted = [version for version in known if version in bound]
    assert admitted == ["0.10.2", "0.11.0", "0.12.0"] and "0.9.2" not in bound
