"""The site: `python -m sphinx -W --keep-going -n docs docs/_build/html`."""

import logging
import sys
from pathlib import Path

import delayjax

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

import reference

project = "delayjax"
author = "The delayjax developers"
copyright = "the delayjax developers"
version = release = delayjax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinxcontrib.bibtex",
    "rendering",  # in docs/_ext, as the next
    "words",
]
exclude_patterns = ["_build", "_ext", "_templates"]
templates_path = ["_templates"]

html_theme = "furo"
html_title = f"delayjax {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["tables.js"]
html_theme_options = {
    "source_repository": "https://github.com/delayjax/delayjax",
    "source_branch": "main",
    "source_directory": "docs/",
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

myst_heading_anchors = 3
nb_execution_mode = "force"  # a page that shows a result has just computed it
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True

# A page for each public name, which autosummary writes: those of old names go.
autosummary_generate = True
autosummary_context = {
    "homes": {full: reference.value(full).__module__ for full in reference.everything()}
}
for stub in (DOCS / "reference" / "names").glob("*.rst"):
    if stub.stem not in reference.everything():
        stub.unlink()

bibtex_bibfiles = ["papers.bib"]
bibtex_default_style = "unsrt"
bibtex_bibliography_id = "list-{bibliography_count}"
bibtex_cite_id = "list-{bibliography_count}-{key}"

intersphinx_mapping = {
    "flax": ("https://flax.readthedocs.io/en/stable/", None),
    "jax": ("https://docs.jax.dev/en/latest/", None),
    "numpy": ("https://numpy.org/doc/stable/", None),
    "optax": ("https://optax.readthedocs.io/en/latest/", None),
    "python": ("https://docs.python.org/3/", None),
}
intersphinx_timeout = 10  # seconds
# Without a network the names of others have no link, and the site is built anyhow.
logging.getLogger("sphinx.sphinx.ext.intersphinx").addFilter(
    lambda record: "failed to reach any of the inventories" not in record.getMessage()
)

autodoc_typehints = "signature"  # docs/_ext/signatures.py writes all but properties'
python_use_unqualified_type_names = True  # `Trace`, and its full name in the link
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_attr_annotations = False
napoleon_custom_sections = [("Example", "Examples")]
python_maximum_signature_line_length = 72
toc_object_entries_show_parents = "hide"

# Our own names must resolve. Those of JAX, Optax and Python are written for a reader.
nitpick_ignore_regex = [(r"py:.*", r"(?!delayjax\.).*")]

# Hosts that answer many requests in a row with 403 or 429. CI asks them too, in a step
# that may fail.
linkcheck_ignore = [r"https://arxiv\.org/.*", r"https://doi\.org/.*"]
linkcheck_report_timeouts_as_broken = False
linkcheck_rate_limit_timeout = 60
