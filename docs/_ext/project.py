"""Pages of the project's own files: the changelog, how to contribute, how to cite.

"```{file} CHANGELOG.md" is replaced by that file of the repository, whose links lead to
pages then; "```{citation}" by the entry for BibTeX that CITATION.cff describes.
"""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
_FILE = re.compile(r"^```\{file\} ([\w.]+)\n```$", re.MULTILINE)
# the pages of the repository's files
PAGES = {
    "CHANGELOG.md": "/project/changelog.md",
    "CONTRIBUTING.md": "/project/contributing.md",
    "CITATION.cff": "/project/citation.md",
}


def expand(page: str) -> str:
    """A page with the files that it asks for."""
    page = _FILE.sub(lambda place: linked((ROOT / place[1]).read_text()), page)
    return page.replace("```{citation}\n```", f"```bibtex\n{bibtex()}\n```")


def linked(text: str) -> str:
    """A file of the repository's root with links that lead to pages of the site."""
    text = re.sub(r"\]\(docs/", "](/", text)
    for name, page in PAGES.items():
        text = text.replace(f"]({name}", f"]({page}")
    return text


def bibtex() -> str:
    """The entry that CITATION.cff describes."""
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    authors = " and ".join(f"{{{author['name']}}}" for author in cff["authors"])
    fields = {
        "title": f"{{{cff['title']}}}",
        "author": f"{{{authors}}}",
        "version": f"{{{cff['version']}}}",
        "url": f"{{{cff['repository-code']}}}",
        "note": f"{{License: {cff['license']}}}",
    }
    lines = ",\n".join(f"  {name:8}= {value}" for name, value in fields.items())
    return f"@software{{delayjax,\n{lines}\n}}"


def read_source(app: Any, name: str, text: list[str]) -> None:
    """Sphinx's hook `source-read`."""
    del app
    if name.startswith("project/"):
        text[0] = expand(text[0])


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry."""
    app.connect("source-read", read_source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
