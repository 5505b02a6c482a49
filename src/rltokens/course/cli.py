"""The command line: ``rltokens audit``, ``rltokens notebooks``, ``rltokens example-class``."""

import argparse
import json
import sys
from pathlib import Path

from rltokens.course.exercises import CourseError, load_course


def main(argv=None):
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(load_course(arguments.course), arguments)
    except CourseError as error:
        print(f"rltokens: {error}", file=sys.stderr)
        return 2


def _parser():
    parser = argparse.ArgumentParser(prog="rltokens", description="The course RL on Token Sequences.")
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name, run, help):
        sub = commands.add_parser(name, help=help, description=help)
        sub.add_argument("--course", default=".", help="the folder that holds graders/ (default: this one)")
        sub.set_defaults(run=run)
        return sub

    audit = command("audit", _audit, "Judge every named right and wrong answer; exit 1 if one is misjudged.")
    audit.add_argument("--json", action="store_true", help="print the result as JSON")
    audit.add_argument(
        "--mutants",
        action="store_true",
        help="also change every reference, one operator at a time (a minute)",
    )

    notebooks = command("notebooks", _notebooks, "Write the student notebooks through nbgrader.")
    notebooks.add_argument("--release", default="release", help="where to (default: release)")

    command("example-class", _example_class, "Make the example class, grade it and print its table.")
    return parser


def _audit(course, arguments):
    from rltokens.course.audit import audit, judge_mutants, misjudged, table

    found = audit(course)
    if arguments.mutants:
        found["mutants"] = judge_mutants(course)
    print(json.dumps(found, indent=2) if arguments.json else table(found))
    return 1 if misjudged(found) else 0


def _notebooks(course, arguments):
    from rltokens.course.notebooks import build

    build(course, course.root / "build" / "notebooks", Path(arguments.release))
    for chapter in course.chapters:
        print(f"{Path(arguments.release) / chapter / chapter}.ipynb")
    return 0


def _example_class(course, arguments):
    from rltokens.course.classroom import grade_class

    grade_class(course, course.root / "build" / "class")
    return 0


if __name__ == "__main__":
    sys.exit(main())
