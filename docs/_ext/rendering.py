"""How the site shows code, equations and tables.

**Links.** Code that is a public name becomes a link to its entry of the reference. A
heading, a block of code and the text of a link stay as they are.

**Equations.** A block "```{equation}" of a page, and an indented block of a docstring,
are typeset. What is no equation stays as it is written.

**Tables.** In a table of three columns or more each cell also has its column's name,
which shows where the rows of the table stand as blocks, on a phone.
"""

from typing import Any

import equations
import public_names
import reference
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

_KEPT = (nodes.reference, nodes.title, addnodes.pending_xref, addnodes.desc_signature)


class Links(SphinxTransform):
    """Replaces each literal that is a public name by a reference to it."""

    default_priority = 500

    def apply(self, **kwargs: Any) -> None:
        """Docutils' entry."""
        page = self.env.docname
        for literal in list(self.document.findall(nodes.literal)):
            full = public_names.target(literal.astext(), page)
            if full and not _is_kept(literal):
                literal.replace_self(_link(literal, full, page))


def _is_kept(node: nodes.Node | None) -> bool:
    while node is not None:
        if isinstance(node, _KEPT):
            return True
        node = node.parent
    return False


def _link(literal: nodes.literal, full: str, page: str) -> nodes.Node:
    code = literal.deepcopy()
    code["classes"] = ["xref", "py", "py-obj"]
    return addnodes.pending_xref(
        "",
        code,
        refdomain="py",
        reftype="obj",
        reftarget=full,
        refexplicit=True,
        refwarn=True,
        refdoc=page,
    )


class Equation(Directive):
    """Typesets its content."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Docutils' entry."""
        lines = list(self.content)
        names = frozenset(full.rpartition(".")[2] for full in reference.everything())
        typeset = equations.html(lines, names)
        text = "\n".join(lines)
        if typeset is None:
            return [nodes.literal_block(text, text, language="text")]
        box = f'<div class="equation-box">{typeset}</div>'
        return [nodes.raw(text, box, format="html")]


class Columns(SphinxTransform):
    """Writes the name of its column into each cell of a table."""

    default_priority = 500

    def apply(self, **kwargs: Any) -> None:
        """Docutils' entry."""
        for table in self.document.findall(nodes.table):
            heads = [
                [entry.astext() for entry in row.findall(nodes.entry)]
                for head in table.findall(nodes.thead)
                for row in head.findall(nodes.row)
            ]
            if len(heads) == 1 and len(heads[0]) > 2:
                table["classes"].append("in-blocks")
                _name_columns(table, heads[0])


def _name_columns(table: nodes.table, heads: list[str]) -> None:
    for body in table.findall(nodes.tbody):
        for row in body.findall(nodes.row):
            entries = list(row.findall(nodes.entry))
            for i, (entry, head) in enumerate(zip(entries, heads, strict=True)):
                name = nodes.inline("", head, classes=["column"])
                if i == 0 and not entry.astext()[:1].isdigit():
                    continue  # it says itself what the block is about
                if not entry.astext():
                    entry["classes"].append("empty")
                elif head and isinstance(entry[0], nodes.paragraph):
                    entry[0].insert(0, name)
                elif head:
                    entry.insert(0, nodes.paragraph("", "", name))


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry."""
    app.add_transform(Links)
    app.add_transform(Columns)
    app.add_directive("equation", Equation)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
