"""`{reference}`: every public name of the package, by its docstring. `{reference} toy`: those of one module.

What is public stands in `rltokens/__init__.py`: the functions of the chapters, and the modules beside them.
A docstring is a few paragraphs, indented equations, sections underlined with dashes, a line `Source: ...` and
examples, as the package writes them. NumPy's format, which Sphinx can read, would take "(B, T) of 1 for a
token" for the name of a type.
"""

import doctest
import inspect
import re
import textwrap
from importlib import import_module
from typing import NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging

import rltokens
from coursebook.exercises import CourseDirective, anchor
from coursebook.html import parse

logger = logging.getLogger(__name__)

INLINE = re.compile(
    r"(`+)(?P<code>.+?)\1"  # `x` or ``x``
    r"|(?<!\w)\*(?P<stress>\w[\w -]*)\*(?!\w)"  # *x*, and not the star of pi*
    r'|(?P<bare>\b\w+Error\b|"[\w-]+"|\B--[\w-]+( \w+$)?)'  # an exception, a string, a command's option
)


def setup(app):
    app.add_directive("reference", ReferenceDirective)


# --- what is public, and what it lacks ----------------------------------------------------------------------


class Entry(NamedTuple):
    """A function, class or method; it is imported as `name` from `module`."""

    module: str
    name: str
    thing: object
    in_a_chapter: bool

    full_name = property(lambda self: f"{self.module}.{self.name}")


def public_modules():
    """Modules with public names, in the order of `rltokens`: the chapters first."""
    names = dict.fromkeys([*rltokens._HOME.values(), *rltokens._MODULES])
    return [import_module(f"rltokens.{name}") for name in names]


def entries(module):
    """The functions and classes that `module` defines for others, in the order of its file."""
    for name, thing in vars(module).items():
        if is_public(name, thing) and thing.__module__ == module.__name__:
            in_a_chapter = f"rltokens.{rltokens._HOME.get(name)}" == module.__name__
            yield Entry("rltokens" if in_a_chapter else module.__name__, name, thing, in_a_chapter)


def methods(entry):
    """A class's own methods; one without a docstring does what its base class says."""
    if inspect.isclass(entry.thing):
        for name, thing in vars(entry.thing).items():
            if is_public(name, thing) and docstring(thing):
                yield Entry(entry.module, f"{entry.name}.{name}", thing, False)


def is_public(name, thing):
    return not name.startswith("_") and (inspect.isfunction(thing) or inspect.isclass(thing))


def docstring(thing):
    text = inspect.cleandoc(thing.__doc__ or "")
    # Python writes "Name(field, ...)" for a dataclass or a named tuple without one.
    return "" if inspect.isclass(thing) and text.startswith(f"{thing.__name__}(") else text


def complaints(entry):
    """What the docstring of an entry lacks."""
    text = docstring(entry.thing)
    if not text:
        yield "has no docstring"
        return
    stands_alone = "." not in entry.name and inspect.isfunction(entry.thing)
    if (stands_alone or entry.in_a_chapter) and not doctest.DocTestParser().get_examples(text):
        yield "has no example that runs (>>> ...)"
    described = [name for names, _ in parameters(sections(text).get("Parameters", "")) for name in names]
    taken = list(signature(entry).parameters)
    if described and described != taken:
        yield f"takes {', '.join(taken)} and describes {', '.join(described)}"


# --- reading a docstring ------------------------------------------------------------------------------------


def sections(text):
    """{title: text} of a docstring; what stands before the first title is under ""."""
    text = re.sub(r"^Source: ", "Source\n------\n", text, flags=re.M)
    first, *others = re.split(r"^(\w+)\n-+\n", text, flags=re.M)
    return {"": first, **dict(zip(others[::2], others[1::2], strict=True))}


def blocks(text):
    """Paragraphs, and indented blocks, which may hold blank lines."""
    found = []
    for block in re.split(r"\n{2,}", text.strip("\n")):
        if block.startswith(" ") and found and found[-1].startswith(" "):
            found[-1] += "\n\n" + block
        else:
            found.append(block)
    return found


def parameters(text):
    """Pairs (names, description) of a section "Parameters"."""
    for entry in re.split(r"\n(?=\S)", text.strip("\n")):
        names, _, description = entry.partition(" : ")
        if entry:
            yield names.split(", "), description


class Shown(str):
    """A default that stands in the signature as it is."""

    __repr__ = str.__str__


def signature(entry):
    """Without types, which the docstring gives as shapes, and without `self`."""
    found = inspect.signature(entry.thing)
    kept = []
    for parameter in found.parameters.values():
        if inspect.isfunction(parameter.default):
            parameter = parameter.replace(default=Shown(parameter.default.__name__))
        kept.append(parameter.replace(annotation=parameter.empty))
    if "." in entry.name:
        kept = kept[1:]
    return found.replace(parameters=kept, return_annotation=found.empty)


# --- from docstrings to a page ------------------------------------------------------------------------------


class ReferenceDirective(CourseDirective):
    required_arguments, optional_arguments = 0, 1

    def run(self):
        modules = public_modules()
        found = [entry for module in modules for entry in entries(module)]
        found += [method for entry in found for method in methods(entry)]
        self.targets = {module.__name__ for module in modules} | {entry.full_name for entry in found}
        if self.arguments:
            modules = [self.find({m.__name__.removeprefix("rltokens."): m for m in modules}, "public module")]
        return [self.section(module) for module in modules]

    def section(self, module):
        self.here = name = module.__name__
        self.env.note_dependency(inspect.getsourcefile(module))
        text = inspect.cleandoc(module.__doc__ or "")
        if not text:
            self.warn(f"{name} has no docstring")
        title, *rest = blocks(text or name)
        section = nodes.section(ids=[f"module-{name}"], names=[name], classes=["reference"])
        python = self.env.get_domain("py")
        python.note_module(name, section["ids"][0], "", "", False)
        python.note_object(name, "module", section["ids"][0], location=section)
        section += nodes.title("", "", *self.inline(title.removesuffix(".")))
        place = nodes.literal("", f"src/{name.replace('.', '/')}.py")
        section += nodes.paragraph("", "", place, classes=["place"])
        section += map(self.block, rest)
        for entry in entries(module):
            section += self.entry(entry)
        return section

    def entry(self, entry):
        """As Sphinx shows functions and classes, so that {py:func}`rltokens.gae` finds it from any page."""
        for complaint in complaints(entry):
            self.warn(f"{entry.full_name} {complaint}")
        kind = "class" if inspect.isclass(entry.thing) else "method" if "." in entry.name else "function"
        shown = nodes.Element()
        parse(self, f"```{{py:{kind}}} {entry.name}{signature(entry)}\n:module: {entry.module}\n```", shown)
        content = next(shown.findall(addnodes.desc_content))
        parts = sections(docstring(entry.thing))
        examples = blocks(parts.pop("Examples", ""))
        content += map(self.block, blocks(parts.pop("")))
        fields = [self.field(title, text) for title, text in parts.items()]
        if entry.in_a_chapter and entry.name in self.course.exercises:
            fields.append(self.field("Exercise", "", parsed=f"{{ref}}`{anchor(entry.name)}`"))
        if fields:
            content += nodes.field_list("", *fields)
        content += map(self.block, examples)
        for method in methods(entry):
            content += self.entry(method)
        return shown.children

    def field(self, title, text, parsed=None):
        body = nodes.field_body()
        if parsed:
            parse(self, parsed, body)
        elif title == "Parameters":
            body += nodes.definition_list("", *(self.parameter(*pair) for pair in parameters(text)))
        else:
            body += map(self.block, blocks(text))
        return nodes.field("", nodes.field_name("", title), body)

    def parameter(self, names, description):
        term = nodes.term()
        for name in names:
            term += [nodes.Text(", "), nodes.literal("", name)] if term.children else nodes.literal("", name)
        text = nodes.paragraph("", "", *self.inline(description))
        return nodes.definition_list_item("", term, nodes.definition("", text))

    def block(self, text):
        if text.startswith(">>>"):
            return nodes.literal_block(text, text, language="pycon")
        if text.startswith(" "):
            text = textwrap.dedent(text)
            return nodes.literal_block(text, text, language="text", classes=["equation"])
        if text.startswith("- "):
            items = (
                nodes.paragraph("", "", *self.inline(item)) for item in re.split(r"^- ", text, flags=re.M)[1:]
            )
            return nodes.bullet_list("", *(nodes.list_item("", item) for item in items))
        return nodes.paragraph("", "", *self.inline(text))

    def inline(self, text):
        text, done = " ".join(text.split()), 0
        for match in INLINE.finditer(text):
            yield nodes.Text(text[done : match.start()])
            done = match.end()
            if match["stress"]:
                yield nodes.emphasis("", match["stress"])
            else:
                yield self.code(match["code"] or match["bare"])
        yield nodes.Text(text[done:])

    def code(self, text):
        literal = nodes.literal("", text)
        # `two_zeros` within its module; `gae`, `ppo.train` and `rltokens.toy` anywhere.
        meant = [name for name in (f"{self.here}.{text}", f"rltokens.{text}", text) if name in self.targets]
        if not meant:
            return literal
        return addnodes.pending_xref(
            "", literal, refdomain="py", reftype="obj", reftarget=meant[0], refexplicit=True,
            refwarn=True, refdoc=self.env.docname,
        )  # fmt: skip

    def warn(self, message):
        logger.warning("reference: %s", message, location=self.get_location())
