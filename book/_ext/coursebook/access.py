"""Accessibility: what authors must write, and what the themes and docutils get wrong."""

import re

from docutils import nodes
from sphinx.util import logging
from sphinxcontrib.mermaid import mermaid

logger = logging.getLogger(__name__)

# (what they write, what it becomes); each is found by axe when it is taken out.
MENDS = [
    # A label that contradicts the visible text.
    (r'(<button class="btn search-button-field[^>]*) aria-label="[^"]*"', r"\1"),
    (r'<summary aria-label="Toggle hidden content">', "<summary>"),
    # The theme switch: its button has a label, its icons need none.
    (r'(<i class="theme-switch [^>]*?) title="[^"]*"', r'\1 aria-hidden="true"'),
    # Without JavaScript the theme does not know "auto", but it does know no setting.
    (r'(<html[^>]*) data-theme="auto"', r"\1"),
    (r"<th></th>", "<td></td>"),
    # Every theorem of a page gets the same id.
    (r' id="proof-content"', ""),
    (r' role="doc-biblioentry"', ' role="listitem"'),
    (r'<div id="pst-primary-sidebar"', '<div id="pst-primary-sidebar" role="region" aria-label="Book"'),
]


def setup(app):
    app.setup_extension("sphinxcontrib.mermaid")
    app.add_node(mermaid, override=True, html=(visit_mermaid, None))
    app.connect("doctree-read", ask_for_alternatives)
    app.connect("builder-inited", mend_pages)


def visit_mermaid(self, node):
    # The library drops :alt: when the browser draws. As an image with a name, the diagram is read as one
    # thing; it can be reached by keyboard since a wide one scrolls.
    alt = node.get("alt", "diagram")
    self.body.append(
        self.starttag(node, "pre", CLASS="mermaid", role="img", tabindex="0", **{"aria-label": alt})
    )
    self.body.append(f"{self.encode(node['code'])}</pre>\n")
    raise nodes.SkipNode


def ask_for_alternatives(app, doctree):
    for node in doctree.findall(lambda n: isinstance(n, (nodes.image, mermaid))):
        if not node.get("alt", "").strip():
            logger.warning(
                "%s has no text alternative: write `:alt:`, or for a cell `mystnb: {image: {alt: ...}}`",
                node.get("uri", "a mermaid diagram"), location=node,
            )  # fmt: skip


def mend_pages(app):
    templates = getattr(app.builder, "templates", None)
    if app.builder.format == "html" and templates:
        render = templates.render
        templates.render = lambda name, context: mend(render(name, context))


def mend(html):
    for pattern, becomes in MENDS:
        html = re.sub(pattern, becomes, html)
    return html
