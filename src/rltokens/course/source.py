"""Python source as text: what an exercise's stub, its solution and a notebook's cells are cut from."""

import ast
import inspect
import textwrap
from pathlib import Path


def function_source(function):
    """(head, body): signature with docstring, and what follows, decorators left out."""
    text = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    node = ast.parse(text).body[0]
    lines = text.splitlines()
    if not ast.get_docstring(node) or len(node.body) < 2:
        raise ValueError(f"{node.name}: an exercise needs a docstring and a body")
    end_of_head = node.body[0].end_lineno
    head, body = lines[node.lineno - 1 : end_of_head], lines[end_of_head : node.end_lineno]
    return "\n".join(head), "\n".join(body)


def reached_from(module_file, roots, leave_out=()):
    """Source of the module's own functions and constants that `roots` need, in the order of the file.

    `leave_out` are names defined elsewhere already.
    """
    text = Path(module_file).read_text(encoding="utf-8")
    lines = text.splitlines()
    defined = {}
    for node in ast.parse(text).body:
        for name in names_bound(node):
            defined[name] = node
    needed, todo = set(), list(roots)
    while todo:
        name = todo.pop()
        if name in defined and name not in needed and name not in leave_out:
            needed.add(name)
            todo += names_read(defined[name]) - _parameters(defined[name])
    nodes = {defined[name].lineno: defined[name] for name in needed}
    return "\n\n\n".join(
        "\n".join(lines[_first_line(node) - 1 : node.end_lineno]) for _, node in sorted(nodes.items())
    )


def names_read(node):
    """Every name that the code of `node` reads."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _parameters(node):
    """A parameter hides what the module calls by its name."""
    return {argument.arg for argument in node.args.args} if isinstance(node, ast.FunctionDef) else set()


def names_bound(node):
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def _first_line(node):
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])
