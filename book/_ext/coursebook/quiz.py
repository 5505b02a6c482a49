"""`{quiz}` and `{predict}`: a question, choices, and to each choice a reply that it opens.

    :::{quiz}
    What does the sum of the log-probabilities give?

    - [x] The log-probability of the response.

      By the chain rule.
    - [ ] Its probability.

      That would be the product of the probabilities.
    :::

Radio buttons and a line of CSS do the work; a script of a few lines only improves the arrow keys.
"""

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from coursebook.html import add_node

logger = logging.getLogger(__name__)

MARKS = {"[x] ": True, "[ ] ": False}


class quiz(nodes.General, nodes.Element):
    """`label`, and an `id` that its parts extend."""


class quiz_question(nodes.General, nodes.Element):
    pass


class quiz_choice(nodes.General, nodes.Element):
    """One radio button; the children are its label's text."""


class quiz_reply(nodes.General, nodes.Element):
    pass


def setup(app):
    add_node(app, quiz, visit_quiz, depart_quiz)
    add_node(app, quiz_question, visit_question, depart_question)
    add_node(app, quiz_choice, visit_choice, depart_choice)
    add_node(app, quiz_reply, visit_reply, depart_reply)
    app.add_directive("quiz", QuizDirective)
    app.add_directive("predict", PredictDirective)
    app.connect("html-page-context", add_script)


class QuizDirective(SphinxDirective):
    has_content = True
    label = "Check yourself"

    def run(self):
        parsed = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, parsed)
        choices = parsed.children.pop() if parsed.children else None
        if not isinstance(choices, nodes.bullet_list) or not parsed.children:
            raise self.error("a question and then a list of choices, `- [ ] ...`, is expected")
        name = f"quiz-{self.env.new_serialno('quiz')}"
        node = quiz("", quiz_question("", *parsed.children, id=name), label=self.label, id=name)
        for number, item in enumerate(choices, 1):
            node += self.choice(item, f"{name}-{number}", name)
        if sum(choice["right"] for choice in node.findall(quiz_choice)) != 1:
            self.warn("exactly one choice must be marked `[x]`")
        return [node]

    def choice(self, item, ident, group):
        first, *reply = item.children or [nodes.paragraph()]
        right = take_mark(first)
        if right is None:
            self.warn(f"a choice must begin with `[ ] ` or `[x] `: {item.astext()[:40]!r}")
        if not reply:
            self.warn(f"a choice has no reply: {item.astext()[:40]!r}")
        verdict = nodes.strong("", "Right." if right else "Not quite.", classes=["quiz-verdict"])
        if reply and isinstance(reply[0], nodes.paragraph):
            reply[0][:0] = [verdict, nodes.Text(" ")]
        else:
            reply.insert(0, nodes.paragraph("", "", verdict))
        return [
            quiz_choice("", *first.children, id=ident, group=group, right=bool(right)),
            quiz_reply("", *reply, right=bool(right)),
        ]

    def warn(self, message):
        logger.warning("%s: %s", self.name, message, location=self.get_location())


class PredictDirective(QuizDirective):
    label = "Predict first"


def take_mark(paragraph):
    """Take `[x] ` or `[ ] ` off the front; True, False, or None where there is none."""
    for mark, right in MARKS.items():
        if paragraph.astext().startswith(mark):
            left = len(mark)
            while left:
                text = str(paragraph[0])
                paragraph[0] = nodes.Text(text[left:])
                left -= min(left, len(text))
                if not paragraph[0]:
                    del paragraph[0]
            return right
    return None


def visit_quiz(self, node):
    name = node["id"]
    # The legend alone would name the group "Check yourself": the question belongs to its name.
    self.body.append(
        f'<fieldset class="quiz" aria-labelledby="{name}-label {name}-question">\n'
        f'<legend id="{name}-label">{node["label"]}</legend>\n'
    )


def depart_quiz(self, node):
    self.body.append("</fieldset>\n")


def visit_question(self, node):
    self.body.append(f'<div class="quiz-question" id="{node["id"]}-question">\n')


def depart_question(self, node):
    self.body.append("</div>\n")


def visit_choice(self, node):
    # autocomplete off: Firefox would show yesterday's answer.
    self.body.append(
        f'<div class="quiz-choice"><input type="radio" id="{node["id"]}" name="{node["group"]}" '
        f'autocomplete="off"><label for="{node["id"]}">'
    )


def depart_choice(self, node):
    self.body.append("</label></div>\n")


def visit_reply(self, node):
    # The status is there from the start and its content appears, which is what screen readers announce.
    kind = "right" if node["right"] else "wrong"
    self.body.append(f'<div class="quiz-status" role="status"><div class="quiz-reply {kind}">\n')


def depart_reply(self, node):
    self.body.append("</div></div>\n")


def add_script(app, pagename, templatename, context, doctree):
    if doctree is not None and next(doctree.findall(quiz), None):
        app.add_js_file("quiz.mjs", type="module")
