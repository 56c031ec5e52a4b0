"""The lines that the pages of docs/trainers show."""

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs" / "trainers"


def lines(page, number=0, language="python"):
    """The block of this number and language in a page."""
    text = (DOCS / f"{page}.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)[number]
