"""A chapter's notebook: prose from `solutions/`, functions from the package, checks from `graders/`.

`build` writes nbgrader's source notebooks, with the answers, and lets ``nbgrader generate_assignment``
make the students' release of them. The same course gives the same bytes.
"""

import ast
import hashlib
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import jupytext
import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from rltokens.course.exercises import EXERCISE_LINE, QUESTION, CourseError
from rltokens.course.source import names_read, reached_from
from rltokens.experiment import pack

ALWAYS_GIVEN = ("rltokens.checking", "rltokens.experiment", "rltokens.plots", "rltokens.toy")

ABOUT_ANSWERS = (
    "The course's own answers, packed so that you do not read them by chance; the book shows them."
)

SETUP_CELL = """\
#@title Set up: run this cell first {{display-mode: "form"}}
# It writes given.py, the toy, the plots and the checks of this chapter, unless they are there.
from pathlib import Path

GIVEN = r\'\'\'
{given}\'\'\'
GIVEN = GIVEN.lstrip("\\n")
if not Path("given.py").exists() or Path("given.py").read_text(encoding="utf-8") != GIVEN:
    Path("given.py").write_text(GIVEN, encoding="utf-8")

import numpy as np
{imports}"""


class BuildError(CourseError):
    """A notebook cannot be made; the message names the file to change."""


def build(course, work, release):
    """Write `work`/source/<chapter>/ for every chapter and `release`/<chapter>/ through nbgrader."""
    work, release = Path(work).resolve(), Path(release).resolve()
    for chapter in course.chapters:
        write_source(course, chapter, work / "source" / chapter)
    # A gradebook that has seen submissions refuses new or removed graded cells: this one is fresh.
    (work / "gradebook.db").unlink(missing_ok=True)
    for chapter in course.chapters:
        run_nbgrader(
            course, "generate_assignment", chapter, "--create", "--force", f"--CourseDirectory.root={work}",
            f"--CourseDirectory.release_directory={release}",
        )  # fmt: skip


def write_source(course, chapter, folder):
    """Write the chapter's notebook, answers and hidden tests included, with `given.py` beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    given = given_source(course, chapter)
    (folder / "given.py").write_text(given, encoding="utf-8")
    nbformat.write(assemble(course, chapter, given), folder / f"{chapter}.ipynb")


def run_nbgrader(course, command, *arguments):
    """Run nbgrader with the configuration in `graders/`; its output comes back, a failure raises."""
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_PATH": str(course.root / "graders"),
        # nbgrader starts alembic by name.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", command, *arguments],
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        raise BuildError(f"nbgrader {command} failed:\n{done.stdout}")
    return done.stdout


def assemble(course, chapter, given):
    """The source notebook of a chapter as nbformat's NotebookNode."""
    setup = SETUP_CELL.format(given=given, imports=_import_of_earlier(course, chapter))
    cells = [_locked(new_code_cell(setup), "setup", folded=True)]
    for cell in jupytext.reads(course.chapters[chapter].text, fmt="md:myst").cells:
        if cell.cell_type == "code":
            cells.append(_prose(new_code_cell(cell.source)))
            continue
        # re.split with one group gives prose, name, prose, name, ..., prose.
        for i, part in enumerate(EXERCISE_LINE.split(cell.source)):
            cells += _exercise_cells(course.exercises[part]) if i % 2 else _prose_cells(part)
    cells.append(_report_cell(course, chapter))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})
    nbformat.validate(notebook)
    return notebook


def _import_of_earlier(course, chapter):
    """The functions of earlier chapters, and those of the toy that the course's own answers call."""
    earlier = {e.name for e in course.exercises.values() if e.chapter < chapter and _in_package(e)}
    answers = [course.exercises[name].solution for name in course.chapters[chapter].exercises]
    called = {name for answer in answers for name in names_read(ast.parse(answer))}
    in_toy = vars(import_module("rltokens.toy"))
    toy = {name for name in called if getattr(in_toy.get(name), "__module__", None) == "rltokens.toy"}
    names = sorted(earlier | toy)
    return f"from given import {', '.join(names)}\n" if names else ""


def _in_package(exercise):
    return exercise.function.__module__.startswith("rltokens.")


def _prose_cells(text):
    """Markdown cells; a question that a person grades becomes two, the text and the place to answer."""
    cells, end = [], 0
    for question in QUESTION.finditer(text):
        cells += _markdown(text[end : question.start()]) + _question_cells(**question.groupdict())
        end = question.end()
    return cells + _markdown(text[end:])


def _markdown(text):
    return [_prose(new_markdown_cell(text.strip()))] if text.strip() else []


def _question_cells(name, points, text, rubric):
    """What nbgrader calls a manually graded task: the instructor's copy holds the rubric as the answer."""
    statement = new_markdown_cell(
        f"### In your own words\n\n**`{name}`** · {points} points, read and graded by a person\n\n{text}"
    )
    answer = new_markdown_cell(f"### BEGIN SOLUTION\nRubric. {rubric}\n### END SOLUTION")
    answer.metadata.nbgrader = _nbgrader(name, grade=True, solution=True, points=int(points))
    answer.id = name
    return [_locked(statement, f"{name}-question"), answer]


def _exercise_cells(exercise):
    name, last_hint = exercise.name, len(exercise.hints)
    hints = (
        "".join(
            f"<details><summary>Hint {i} of {last_hint}</summary>\n\n{hint}\n\n"
            for i, hint in enumerate(exercise.hints, 1)
        )
        + "</details>" * last_hint
    )  # each hint lies inside the one before, so they open one by one
    heading = (
        f"### {exercise.title}\n\n**`{name}`** · {exercise.difficulty} · about {exercise.minutes} minutes · "
        f"{exercise.points} points\n\n{exercise.statement}"
    )
    answer = new_code_cell(exercise.marked_solution)
    answer.metadata.nbgrader = _nbgrader(name, solution=True)
    graded = new_code_cell(
        f"# Graded: {exercise.points} points. More checks run here when your notebook is graded.\n"
        "### BEGIN HIDDEN TESTS\n"
        + grader_code(
            exercise, (*exercise.visible, *exercise.hidden), f"grade(globals(), {exercise.points}, {{}})"
        )
        + "\n### END HIDDEN TESTS"
    )
    graded.metadata.nbgrader = _nbgrader(f"{name}-graded", grade=True, locked=True, points=exercise.points)
    given = [_locked(new_code_cell(exercise.given_source), f"{name}-given")] if exercise.given else []
    cells = [
        _locked(new_markdown_cell(heading), f"{name}-statement"),
        *given,
        answer,
        _locked(
            new_code_cell(grader_code(exercise, exercise.visible, "check(globals(), {})", "given")),
            f"{name}-checks",
        ),
        _locked(new_markdown_cell(hints), f"{name}-hints"),
        graded,
    ]
    answer.id, graded.id = name, f"{name}-graded"
    return cells


def grader_code(exercise, checks, call, home=None):
    """The checks' source with all that they use, and the call that runs them.

    `home` is the module to import from in place of the package: the release knows only `given`.
    """
    path = Path(exercise.grader.__file__)
    code = reached_from(path, [check.__name__ for check in checks])
    call = call.format(", ".join(check.__name__ for check in checks))
    used = names_read(ast.parse(code)) | names_read(ast.parse(call))
    if home and "rltokens" in used:
        raise BuildError(f"{path}: a visible check names rltokens, which the released notebook does not have")
    imported = _imported_names(path)
    imported.setdefault("rltokens.checking", set()).add(call.partition("(")[0])
    imports = _plain_imports(path, used)
    for module, names in imported.items():
        if names & used:
            imports.append(f"from {home or module} import {', '.join(sorted(names & used))}")
    return "\n".join(imports) + f"\n\n\n{code}\n\n\n{call}"


def _plain_imports(path, used):
    """The file's lines ``import x`` and ``import x as y`` whose name the code uses."""
    nodes = [
        node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.Import)
    ]
    return [ast.unparse(node) for node in nodes if any((a.asname or a.name) in used for a in node.names)]


def _imported_names(path):
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            found.setdefault(node.module, set()).update(alias.name for alias in node.names)
    return found


def given_source(course, chapter):
    """One file that holds what the chapter's notebook needs of the package, and none of its answers."""
    exercises = [course.exercises[name] for name in course.chapters[chapter].exercises]
    own = {exercise.function.__module__ for exercise in exercises if _in_package(exercise)}
    earlier = [
        e.function.__module__ for e in course.exercises.values() if e.chapter < chapter and _in_package(e)
    ]
    for_checks = [
        module
        for exercise in exercises
        for module in _imported_names(Path(exercise.grader.__file__))
        if module.startswith("rltokens.")
    ]
    order = []

    def visit(module):
        if module in order or module == "rltokens.validation":
            return
        if module in own:
            raise BuildError(
                f"{chapter}: what is given needs {module}, which holds the chapter's own answers"
            )
        for needed in _imported_names(Path(import_module(module).__file__)):
            if needed.startswith("rltokens."):
                visit(needed)
        order.append(module)

    for_prose = re.findall(r"^given: (.+)$", course.chapters[chapter].text, re.M)  # in the text's header
    asked_for = [f"rltokens.{name}" for names in for_prose for name in names.split()]

    for module in dict.fromkeys([*ALWAYS_GIVEN, *earlier, *for_checks, *asked_for]):
        visit(module)
    bodies = [_standalone(module) for module in order]
    imports = sorted({line for lines, _ in bodies for line in lines})
    answers = "\n\n\n".join(_standalone(module)[1] for module in sorted(own))
    text = (
        f'"""What the notebook of {chapter} is given: generated, not to be changed."""\n\n'
        + "\n".join(imports) + "\n\n\n" + "\n\n\n".join(body for _, body in bodies)
        + f"\n\n\n# {ABOUT_ANSWERS}\nCOURSE = unpack({pack(answers)!r})\n"
    )  # fmt: skip
    if "'''" in text:
        raise BuildError(f"{chapter}: given.py holds ''' and cannot stand in the notebook's first cell")
    return text


def _standalone(module):
    """(imports, the rest) of a module without its docstring, validation, and imports from the package."""
    text = Path(import_module(module).__file__).read_text(encoding="utf-8")
    tree, lines = ast.parse(text), text.splitlines()
    imports, dropped = [], set()
    for node in tree.body:
        rows = range(node.lineno - 1, node.end_lineno)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if not (isinstance(node, ast.ImportFrom) and node.module.startswith("rltokens")):
                imports.append(" ".join(line.strip() for line in lines[node.lineno - 1 : node.end_lineno]))
            dropped.update(rows)
        elif node is tree.body[0] and isinstance(node, ast.Expr):
            dropped.update(rows)
        for decorator in getattr(node, "decorator_list", []):
            if ast.unparse(decorator).startswith("validated("):
                dropped.update(range(decorator.lineno - 1, decorator.end_lineno))
    body = "\n".join(line for i, line in enumerate(lines) if i not in dropped)
    return imports, re.sub(r"\n{4,}", "\n\n\n", body).strip()


def _report_cell(course, chapter):
    points = {name: course.exercises[name].points for name in course.chapters[chapter].exercises}
    listed = "".join(f'    "{name}": {worth},\n' for name, worth in points.items())
    cell = new_code_cell(f"# Where you stand.\nfrom given import report\n\nreport(globals(), {{\n{listed}}})")
    return _locked(cell, "report")


def _prose(cell):
    # An id from the content stays the same when something is added elsewhere.
    cell.id = f"{cell.cell_type}-{hashlib.sha256(cell.source.encode()).hexdigest()[:10]}"
    return cell


def _locked(cell, grade_id, folded=False):
    cell.id = grade_id
    cell.metadata.nbgrader = _nbgrader(grade_id, locked=True)
    if folded:
        cell.metadata.jupyter = {"source_hidden": True}
        cell.metadata.tags = ["hide-input"]
    return cell


def _nbgrader(grade_id, *, grade=False, locked=False, solution=False, points=None):
    settings = {"grade": grade, "locked": locked, "solution": solution, "task": False}
    settings |= {"grade_id": grade_id, "schema_version": 3}
    return settings if points is None else {**settings, "points": points}
