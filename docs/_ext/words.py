"""Words with a meaning of their own: the first of each on a page links to its row.

The words are the rows of the table in docs/concepts/words.md.
"""

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

PAGE = "concepts/words"
# words of the table that mean nothing else on any page: no "step", no "version"
LINKED = ("staleness", "history", "outbox", "lookback", "replica", "service time")
_FORMS = re.compile(rf"\b(?:({'|'.join(LINKED)})s?|histories)\b")
_MADE = ("reference/", "project/")  # of docstrings, and of files


class Words(SphinxTransform):
    """Gives the rows of the table their anchors, and links other pages to them."""

    default_priority = 510

    def apply(self, **kwargs: Any) -> None:
        """Docutils' entry."""
        if self.env.docname == PAGE:
            self._mark_rows()
        elif not self.env.docname.startswith(_MADE):
            linked: set[str] = set()
            for text in list(self.document.findall(nodes.Text)):
                # not a heading's, a link's or code's
                if isinstance(text.parent, nodes.paragraph):
                    text.parent.replace(text, self._parts(text.astext(), linked))

    def _mark_rows(self) -> None:
        domain = self.env.get_domain("std")
        for row in self.document.findall(nodes.row):
            cell = row.next_node(nodes.entry)
            for word in LINKED:
                if cell.astext().startswith(word):
                    cell["ids"].append(_anchor(word))
                    domain.note_hyperlink_target(
                        _anchor(word), PAGE, _anchor(word), word
                    )

    def _parts(self, text: str, linked: set[str]) -> list[nodes.Node]:
        """The text, in which words that are not `linked` yet have become links."""
        parts, end = [], 0
        for match in _FORMS.finditer(text):
            word = match[1] or "history"
            if word not in linked:
                linked.add(word)
                link = addnodes.pending_xref("", nodes.inline("", match[0]))
                link.update_all_atts({"refdomain": "std", "reftype": "ref"})
                link.update_all_atts({"reftarget": _anchor(word), "refexplicit": True})
                link.update_all_atts({"refdoc": self.env.docname, "refwarn": True})
                parts += [nodes.Text(text[end : match.start()]), link]
                end = match.end()
        return [*parts, nodes.Text(text[end:])]


def _anchor(word: str) -> str:
    return f"word-{word.replace(' ', '-')}"


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry."""
    app.add_transform(Words)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
