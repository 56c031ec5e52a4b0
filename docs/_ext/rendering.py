"""What becomes of a page once it is parsed: links.

**Links.** Code that is a public name becomes a link to its entry of the reference. A
heading, a block of code and the text of a link stay as they are.
"""

from typing import Any

import public_names
from docutils import nodes
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


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry."""
    app.add_transform(Links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
