"""Small things for the other files: a node for `<details>`, and how to add a node that only HTML draws."""

from docutils import nodes
from docutils.statemachine import StringList


class details(nodes.General, nodes.Element):
    """Folded text: `summary` is the line that opens it."""


def visit_details(self, node):
    self.body.append(self.starttag(node, "details"))
    self.body.append(f'<summary>{self.encode(node["summary"])}</summary>\n<div class="details-body">\n')


def depart_details(self, node):
    self.body.append("</div>\n</details>\n")


def fold(directive, summary, markdown, *classes):
    """A details node with `markdown`, parsed where `directive` stands."""
    node = details(summary=summary, classes=list(classes))
    parse(directive, markdown, node)
    return node


def parse(directive, markdown, node):
    """Parse text that does not come from the page itself into `node`."""
    lines = StringList(markdown.splitlines(), source=directive.env.docname)
    directive.state.nested_parse(lines, directive.content_offset, node)


def add_node(app, node, visit, depart):
    """Register a node; every other format shows its content and nothing around it."""
    plain = (lambda self, node: None, lambda self, node: None)
    app.add_node(node, html=(visit, depart), latex=plain, text=plain, man=plain, texinfo=plain)
