"""The pages of the changelog, of contributing and of citing, made from the files."""

import re
import tomllib

import project
import pytest
from packaging.requirements import Requirement

import delayjax

DOCS = project.ROOT / "docs"


@pytest.mark.parametrize("name, page", project.PAGES.items())
def test_each_file_has_a_page_that_the_site_lists(name, page):
    assert (project.ROOT / name).exists()
    assert (DOCS / page[1:]).exists()
    assert page[1:].removesuffix(".md") in (DOCS / "index.md").read_text()


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md"])
def test_the_links_of_a_file_lead_to_pages(name):
    page = project.expand(f"```{{file}} {name}\n```")
    for target in re.findall(r"\]\(([^)#]+)", page):
        assert target.startswith("https://") or (DOCS / target[1:]).exists(), target


def test_the_citation_has_the_version():
    entry = project.expand("```{citation}\n```")
    assert entry.startswith("```bibtex\n@software{delayjax,\n")
    assert f"version = {{{delayjax.__version__}}}" in entry
    assert entry.count("{") == entry.count("}")


def test_every_requirement_of_jax_leaves_out_the_versions_that_are_broken():
    project_ = tomllib.loads((project.ROOT / "pyproject.toml").read_text())["project"]
    lists = project_["dependencies"], *project_["optional-dependencies"].values()
    required = [Requirement(own) for given in lists for own in given]
    bounds = {own.specifier for own in required if own.name == "jax"}
    assert len(bounds) == 1
    (bound,) = bounds
    known = "0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.12.0"
    admitted = [version for version in known if version in bound]
    assert admitted == ["0.10.2", "0.11.0", "0.12.0"] and "0.9.2" not in bound
