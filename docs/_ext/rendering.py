"""What the site adds to Sphinx: links of code, equations, docstrings, two listings.

Code that is a public name becomes a link to its entry of the reference; a heading, a
block of code and the text of a link stay as they are. A block "```{equation}" of a
page, and an indented block of a docstring, are typeset.
"""

import re
from typing import Any

import docstrings
import equations
import papers
import reference
import signatures
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

_KEPT = (nodes.reference, nodes.title, addnodes.pending_xref, addnodes.desc_signature)
_ABROAD = re.compile(r"(?:flax|jax|numpy|optax)\.[\w.]+")  # of conf's intersphinx
_DOCTEST = re.compile(r"(^```python\n>>>.*?)\n\n```$", re.MULTILINE | re.DOTALL)


class Links(SphinxTransform):
    """Replaces each literal that is a public name by a reference to it."""

    default_priority = 500

    def apply(self, **kwargs: Any) -> None:
        """Docutils' entry."""
        page = self.env.docname
        for literal in list(self.document.findall(nodes.literal)):
            code = literal.astext()
            abroad = _ABROAD.match(code)
            full = abroad[0] if abroad else reference.target(code, page)
            if full and not _is_kept(literal):
                code = literal.deepcopy()
                code["classes"] = ["xref", "py", "py-obj"]
                link = addnodes.pending_xref("", code, refdomain="py", reftype="obj")
                link.update_all_atts({"reftarget": full, "refdoc": page})
                link.update_all_atts({"refexplicit": True, "refwarn": True})
                literal.replace_self(link)


def _is_kept(node: nodes.Node | None) -> bool:
    return node is not None and (isinstance(node, _KEPT) or _is_kept(node.parent))


class Equation(Directive):
    """Typesets its content; what is no equation stays as it is written."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Docutils' entry."""
        names = frozenset(full.rpartition(".")[2] for full in reference.everything())
        text = "\n".join(self.content)
        typeset = equations.html(list(self.content), names)
        if typeset is None:
            return [nodes.literal_block(text, text, language="text")]
        box = f'<div class="equation-box">{typeset}</div>'
        return [nodes.raw(text, box, format="html")]


def read_source(app: Any, name: str, text: list[str]) -> None:
    """Sphinx's hook `source-read`."""
    if name == "reference/papers":
        text[0] = text[0].replace("```{papers}\n```", papers.listing())
    if name == "reference/types":
        entries = ["\n".join(lines) for lines in signatures.types().values()]
        rst = "\n\n".join(["```{eval-rst}", *entries, ".. footbibliography::", "```"])
        text[0] = text[0].replace("```{types}\n```", rst)
    # the empty line after a doctest's last output is for the test alone
    text[0] = _DOCTEST.sub(r"\1\n```", text[0])


def process_signature(
    app: Any, what: str, name: str, obj: Any, *shown: Any
) -> tuple[str, str | None] | None:
    """Sphinx's hook `autodoc-process-signature`."""
    return signatures.text_of(obj) if what in ("function", "method", "class") else None


def missing_reference(app: Any, env: Any, node: Any, shown: Any) -> Any:
    """Sphinx's hook of this name: a property's private type is on the page of types."""
    private, _, name = node["reftarget"].rpartition(".")
    if not private.startswith("delayjax._src"):
        return None
    python, page = env.get_domain("py"), node["refdoc"]
    return python.resolve_xref(env, page, app.builder, "class", name, node, shown)


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry."""
    app.add_transform(Links)
    app.add_directive("equation", Equation)
    app.connect("source-read", read_source)
    app.connect("missing-reference", missing_reference)
    app.connect("autodoc-process-signature", process_signature)
    app.connect("autodoc-process-docstring", docstrings.process_docstring, priority=400)
    app.connect("autodoc-skip-member", docstrings.skip_member)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
