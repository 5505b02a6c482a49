"""The reference page: whose docstrings it takes, what it asks of them, and how it reads them."""

import doctest
import io
import sys
from dataclasses import dataclass
from types import ModuleType

import pytest
from conftest import ROOT
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

import rltokens

sys.path.append(str(ROOT / "book" / "_ext"))
from coursebook import reference

ENTRIES = [entry for module in reference.public_modules() for entry in reference.entries(module)]
OF_CHAPTERS = {entry.name: entry for entry in ENTRIES if entry.in_a_chapter}


def test_no_name_of_a_chapter_is_left_out():
    assert set(OF_CHAPTERS) == set(rltokens._HOME)
    names = [entry.full_name for entry in ENTRIES]
    assert len(names) == len(set(names)), "an anchor would lead to two places"


def test_chapters_come_first_and_in_their_order():
    titles = [module.__doc__.partition(":")[0] for module in reference.public_modules()]
    chapters = [title for title in titles if title.startswith("Chapter ")]
    assert chapters == [f"Chapter {number}" for number in range(1, len(chapters) + 1)]
    assert titles[0] == chapters[0]


@pytest.mark.parametrize("name", rltokens._HOME)
def test_the_example_runs_where_the_page_says(name):
    """After `from rltokens.MODULE import *`: an example that needs a name with an underscore fails."""
    space = {}
    exec(f"from rltokens.{rltokens._HOME[name]} import *", space)
    test = doctest.DocTestParser().get_doctest(OF_CHAPTERS[name].thing.__doc__, space, name, None, 0)
    said = io.StringIO()
    result = doctest.DocTestRunner().run(test, out=said.write)
    assert result.attempted > 0, "no example"
    assert result.failed == 0, said.getvalue()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.full_name)
def test_docstrings_hold_what_the_page_asks(entry):
    assert list(reference.complaints(entry)) == []


def complaints(thing, in_a_chapter=False):
    return list(reference.complaints(reference.Entry("rltokens.fake", thing.__name__, thing, in_a_chapter)))


def test_a_public_name_without_docstring_is_reported():
    def function():
        pass

    class Plain:
        pass

    @dataclass
    class Data:  # Python writes a docstring, "Data(x: int)", that says nothing
        x: int

    class Child(ValueError):  # inspect.getdoc would show that of ValueError
        pass

    for thing in (function, Plain, Data, Child):
        assert complaints(thing) == ["has no docstring"]


def test_a_function_without_an_example_is_reported():
    def function():
        """What it does.

        function() is no example
        """

    class Helper:
        """What it holds."""

    for complaint in (*complaints(function), *complaints(Helper, in_a_chapter=True)):
        assert "no example" in complaint
    assert complaints(Helper) == []


@pytest.mark.parametrize(
    "text", ["x : (B, T)", "x : (B, T)\ny, z : other", "y : second\nx : first", "x, y : (B,)\nz"]
)
def test_parameters_that_are_not_those_of_the_signature_are_reported(text):
    def function(x, y):
        pass

    function.__doc__ = (
        f"What it does.\n\nParameters\n----------\n{text}\n\nReturns\n-------\nfloat\n\n>>> 1\n1"
    )
    (complaint,) = complaints(function)
    assert complaint.startswith("takes x, y and describes")
    function.__doc__ = function.__doc__.replace(text, "x : (B, T),\n    of anything\ny : more")
    assert complaints(function) == []


DOCSTRING = """What it does.

    a = b

    c = d

More words.

Parameters
----------
x, y : (B, T) of 1; may be
    anything : else
z : ``-inf`` or not

Raises
------
ValueError for nonsense.

Source: Somebody (1999),
page 3.

Examples
--------
>>> 1
1
"""


def test_a_docstring_is_taken_apart_where_its_parts_begin():
    parts = reference.sections(DOCSTRING)
    assert list(parts) == ["", "Parameters", "Raises", "Source", "Examples"]
    assert reference.blocks(parts[""]) == ["What it does.", "    a = b\n\n    c = d", "More words."]
    assert list(reference.parameters(parts["Parameters"])) == [
        (["x", "y"], "(B, T) of 1; may be\n    anything : else"),
        (["z"], "``-inf`` or not"),
    ]
    assert parts["Raises"].strip() == "ValueError for nonsense.", "the source is no exception"
    assert parts["Source"].split() == ["Somebody", "(1999),", "page", "3."]


def test_only_marked_words_are_set_apart():
    text = """pi* and `gae` of *other* pi*, V**2, V**T, 2 * x * y, 2 *x*y, ``-inf``, a ValueError,
        "ansi", "so it is", well-known; off: --beta 0"""
    found = [m["code"] or m["stress"] or m["bare"] for m in reference.INLINE.finditer(text)]
    assert found == ["gae", "other", "-inf", "ValueError", '"ansi"', "--beta 0"]


def test_a_signature_names_a_function_instead_of_its_address():
    def function(x, score=complaints, mode="mean", *, y: int = 3) -> float:
        pass

    entry = reference.Entry("rltokens.fake", "function", function, False)
    assert str(reference.signature(entry)) == "(x, score=complaints, mode='mean', *, y=3)"


COURSE = {
    "solutions/ch01.md": "# One\n\n{exercise}`chapter`\n",
    "graders/chapter.py": "TITLE = STATEMENT = DIFFICULTY = MINUTES = POINTS = HINTS = VISIBLE = HIDDEN = ''",
    "book/index.md": "(exercise-chapter)=\n# Page\n\n```{reference}\n```\n",
}


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Builds a page with the reference of a module of the given source: (HTML, warnings)."""

    def build(source):
        fake = ModuleType("rltokens.fake")
        fake.__file__ = str(tmp_path / "fake.py")
        (tmp_path / "fake.py").write_text(source, "utf-8")
        exec(source, vars(fake))
        monkeypatch.setitem(sys.modules, "rltokens.fake", fake)
        monkeypatch.setattr(rltokens, "_MODULES", ("fake",))
        monkeypatch.setattr(rltokens, "_HOME", {"chapter": "fake"})
        for path, text in COURSE.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(text, "utf-8")
        book = tmp_path / "book"
        warned = io.StringIO()
        with docutils_namespace():
            settings = {"extensions": ["myst_parser", "coursebook.reference"], "nitpicky": True}
            folders = (book, None, tmp_path / "out", tmp_path / "doctrees")
            Sphinx(*folders, "html", settings, status=None, warning=warned).build()
        return (tmp_path / "out" / "index.html").read_text("utf-8"), warned.getvalue()

    return build


UNDOCUMENTED = '''
def chapter():
    """Do."""
def helper(): pass
def _private(): pass
'''

LINKED = '''
"""Fake things, in all: `chapter`.

More of `rltokens.fake`, `fake.Thing.method`."""
class Thing:
    """See `chapter` and `mask`."""
    def method(self, x):
        """Do."""
def chapter(x):
    """As `Thing`.

    >>> 1
    1
    """
'''


def test_an_undocumented_public_name_fails_the_build(page):
    """In the book's build a warning is an error."""
    html, warned = page(UNDOCUMENTED)
    assert "rltokens.fake has no docstring" in warned
    assert "rltokens.fake.helper has no docstring" in warned
    assert "rltokens.chapter has no example" in warned
    assert "rltokens.fake.helper has no example" not in warned  # one thing at a time
    assert warned.count("reference: ") == 3
    assert "_private" not in html


def test_names_have_anchors_and_link_to_each_other(page):
    html, warned = page(LINKED)
    assert warned == ""
    names = ("rltokens.fake.Thing", "rltokens.fake.Thing.method", "rltokens.chapter", "module-rltokens.fake")
    for anchor in names:
        assert f'id="{anchor}"' in html
    text = html[html.index("<h1>") :]  # behind the table of contents
    for anchor in (*names, "exercise-chapter"):
        assert f'<a class="reference internal" href="#{anchor}"' in text
    assert 'class="highlight-pycon' in text
    assert "self" not in text
