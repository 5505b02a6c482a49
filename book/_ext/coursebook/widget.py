"""`{widget} NAME`: something to move. The content stands where scripts do not run, and in print.

The numbers come from the package, when the book is built; `widgets.mjs` only tilts and adds.
"""

import json

import numpy as np
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from coursebook.html import add_node
from rltokens import toy
from rltokens.logprobs import sequence_distribution
from rltokens.mdp import enumerate_responses

# Answers to "Is it X?": how likely the reference gives them, how good they are, how a reward model that
# over-rates confidence and flattery scores them.
ANSWERS = (
    ("I do not know.", 0.28, 0.1, 0.0),
    ("X.", 0.25, 0.5, 0.5),
    ("X, and here is why.", 0.25, 0.9, 1.0),
    ("X, here is why, and here is what may be wrong.", 0.15, 1.0, 1.1),
    ("Certainly X!", 0.05, 0.3, 1.0),
    ("What a wise question! X, beyond any doubt.", 0.02, 0.0, 1.6),
)


class widget(nodes.General, nodes.Element):
    """`name` of the widget, and its `data`."""


def setup(app):
    add_node(app, widget, visit, depart)
    app.add_directive("widget", WidgetDirective)
    app.connect("html-page-context", add_script)


class WidgetDirective(SphinxDirective):
    required_arguments = 1
    has_content = True

    def run(self):
        name = self.arguments[0]
        if name not in DATA:
            raise self.error(f"no widget {name!r}; there are {', '.join(DATA)}")
        if not self.content:
            raise self.error("say in the content what the widget shows, for readers without it")
        node = widget(name=name, data=DATA[name]())
        self.state.nested_parse(self.content, self.content_offset, node)
        return [node]


def credit():
    """The deltas of the toy's response 0 3 0, by the exact values of the reference."""
    response, table = np.array([[0, 3, 0]]), toy.reference_logits()
    value = toy.prefix_values(table, toy.two_zeros(enumerate_responses(4, 3))).value
    along = [*value[toy.prefix_rows(response)[0]], 1.0]
    return {"deltas": np.diff(along).round(3).tolist()}


def frontier():
    """The toy's reference and rewards, all 64 responses."""
    responses = enumerate_responses(toy.VOCAB_SIZE, toy.LENGTH)
    logp = sequence_distribution(toy.reference_logits(), toy.VOCAB_SIZE, toy.LENGTH)
    return {"logp": logp.tolist(), "reward": toy.two_zeros(responses).tolist()}


def flattery():
    texts, p, true, proxy = zip(*ANSWERS, strict=True)
    return {"texts": texts, "logp": np.log(p).tolist(), "reward": proxy, "truth": true}


DATA = {"credit": credit, "frontier": frontier, "flattery": flattery}


def visit(self, node):
    data = self.attval(json.dumps(node["data"]))
    self.body.append(f'<div class="widget" data-widget="{node["name"]}" data-values="{data}">\n')


def depart(self, node):
    self.body.append("</div>\n")


def add_script(app, pagename, templatename, context, doctree):
    if doctree is not None and next(doctree.findall(widget), None):
        app.add_js_file("widgets.mjs", type="module")
