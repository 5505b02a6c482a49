"""Mutants: a reference with one operator changed. Some check must reject each, or it must be equivalent.

A mutant that all checks accept shows a hole: a wrong answer that nobody named and that would earn full
points. Where a change makes no difference to any answer, the exercise's file in `graders/` lists it in
`EQUIVALENT`, from the line as changed to the reason.
"""

import ast
import copy
import inspect
import sys
import textwrap

import numpy as np

from rltokens.checking import run_checks

COMPARISONS = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any",
         "argmin": "argmax", "argmax": "argmin", "zeros": "ones", "zeros_like": "ones_like", "sum": "mean",
         "exp": "expm1", "cumsum": "cumprod"}  # fmt: skip


def mutants(function):
    """(line as changed, mutant) for every change of one operator in the body of `function`."""
    function = inspect.unwrap(function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    tree.body[0].decorator_list = []
    body = tree.body[0].body[1:]  # without the docstring
    places = [node for statement in body for node in ast.walk(statement)]
    for place in range(len(places)):
        for change in range(len(_changes(places[place]))):
            changed = copy.deepcopy(tree)
            nodes = [node for statement in changed.body[0].body[1:] for node in ast.walk(statement)]
            _changes(nodes[place])[change]()
            yield _line(changed, nodes[place]), _compiled(changed, function)


def _line(tree, node):
    """The code around the node: the largest statement or expression of at most 90 characters."""
    around = [part for part in ast.walk(tree) if any(inner is node for inner in ast.walk(part))]
    plain = [p for p in around if isinstance(p, (ast.stmt, ast.expr)) and not hasattr(p, "body")]
    parts = [ast.unparse(part) for part in plain]
    return next((part for part in parts if len(part) <= 90), parts[-1])


def _changes(node):
    """What can be changed at this node: functions that do it in place."""
    found = []

    def change(**fields):
        found.append(lambda: [setattr(node, name, value) for name, value in fields.items()])

    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        change(ops=[COMPARISONS[type(node.ops[0])](), *node.ops[1:]])
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in OPERATORS:
        change(op=OPERATORS[type(node.op)]())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Invert)):
        change(op=ast.UAdd()) if isinstance(node.op, ast.USub) else change(op=ast.Not())
    if isinstance(node, ast.BoolOp):
        change(op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        change(value=not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        change(value=node.value + 1)
    if isinstance(node, ast.Attribute) and node.attr in NAMES:
        change(attr=NAMES[node.attr])
    if isinstance(node, ast.Name) and node.id in ("min", "max"):
        change(id=NAMES[node.id])
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "np.where":
        condition, chosen, other = node.args
        change(args=[condition, other, chosen])
        change(args=[ast.Constant(True), chosen, other])  # the mask is dropped
    return found


def _compiled(tree, function):
    namespace = dict(vars(sys.modules[function.__module__]))
    exec(compile(ast.fix_missing_locations(tree), f"<a mutant of {function.__name__}>", "exec"), namespace)
    return namespace[function.__name__]


def survivors(exercise):
    """(count, lines): how many mutants there are, and those that every check accepts and nobody excused.

    An exercise whose reference is no function of the package has many right answers, and no mutants.
    """
    checks, count, lines = (*exercise.visible, *exercise.hidden), 0, []
    if not exercise.function.__module__.startswith("rltokens."):
        return 0, []
    excused = getattr(exercise.grader, "EQUIVALENT", {})
    for line, mutant in mutants(exercise.function):
        count += 1
        with np.errstate(all="ignore"):
            rejected = any(result.failure for result in run_checks(mutant, checks))
        if not rejected and line not in excused:
            lines.append(line)
    return count, lines
