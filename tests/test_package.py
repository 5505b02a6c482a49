"""The package as a whole: what importing it costs, its examples, and the files that pin it."""

import doctest
import inspect
import re
import subprocess
import sys
from importlib import import_module

import pytest
import yaml
from conftest import ROOT

import rltokens

MODULES = sorted(p.stem for p in (ROOT / "src" / "rltokens").glob("*.py") if p.stem != "__init__")


def run(*lines):
    """What a fresh interpreter prints."""
    return subprocess.check_output([sys.executable, "-c", "\n".join(lines)], text=True).strip()


def test_importing_the_package_loads_nothing_heavy():
    heavy = "[m for m in ('numpy', 'torch', 'gymnasium', 'matplotlib', 'tqdm') if m in sys.modules]"
    assert run("import sys, rltokens", f"print({heavy})") == "[]"


def test_chapters_1_to_5_load_numpy_and_nothing_else_that_is_heavy():
    names = [n for n, home in rltokens._HOME.items() if home not in ("losses", "environment")]
    heavy = "[m for m in ('numpy', 'torch', 'gymnasium', 'matplotlib') if m in sys.modules]"
    assert run("import sys", f"from rltokens import {', '.join(names)}", f"print({heavy})") == "['numpy']"


@pytest.mark.parametrize(
    ("missing", "name"),
    [
        ("torch", "aggregate"),
        ("torch", "ppo_loss"),
        ("torch", "freeze"),
        ("torch", "losses"),
        ("gymnasium", "TokenMDP"),
    ],
)
def test_a_missing_library_is_named_with_the_way_to_get_it(missing, name):
    said = run(
        "import sys",
        f"sys.modules[{missing!r}] = None",
        "import rltokens",
        "rltokens.gae, rltokens.transition  # these need neither",
        f"try: from rltokens import {name}",
        "except ImportError as error: print(type(error).__name__, error, sep=': ')",
    )
    assert said == f"ImportError: rltokens.{name} needs {missing}: pip install {missing}"


def test_every_public_name_is_there():
    for name in rltokens.__all__:
        assert getattr(rltokens, name).__doc__, f"{name} has no docstring"
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        rltokens.no_such_name  # noqa: B018


@pytest.mark.parametrize("module", sorted(set(rltokens._HOME.values())))
def test_every_function_of_a_chapter_can_be_imported_from_the_package(module):
    functions = inspect.getmembers(import_module(f"rltokens.{module}"), inspect.isfunction)
    own = {n for n, f in functions if f.__module__ == f"rltokens.{module}" and not n.startswith("_")}
    forgotten = own - {name for name, home in rltokens._HOME.items() if home == module}
    assert not forgotten, f"add {sorted(forgotten)} to _HOME in src/rltokens/__init__.py"


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_the_docstrings(module):
    result = doctest.testmod(import_module(f"rltokens.{module}"))
    assert result.failed == 0
    if module not in ("plots", "checking", "validation"):
        assert result.attempted > 0


def test_versions_are_pinned_once():
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pins = [line for line in lock.splitlines() if line and not line.startswith("#")]
    assert all("==" in line for line in pins)
    assert not re.search(r"https?://|nvidia|cuda", "\n".join(pins))
    for other in ("pyproject.toml", "environment.yml", "Makefile"):
        text = (ROOT / other).read_text(encoding="utf-8")
        assert not re.search(r"[a-z]==\d", text), (
            f"{other} pins a version: that belongs into requirements.lock"
        )


@pytest.mark.slow
def test_the_pip_part_of_the_conda_environment_resolves(tmp_path):
    """conda itself is not run: it hands these lines to pip as a requirements file beside environment.yml."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    (lines,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    requirements = ROOT / "build" / "conda-requirements.txt"
    requirements.parent.mkdir(exist_ok=True)
    # pip reads paths in the file as relative to the file, conda's stands in the project's folder.
    text = "\n".join(lines).replace("requirements.lock", str(ROOT / "requirements.lock"))
    requirements.write_text(text.replace("--editable .", f"--editable {ROOT}") + "\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--quiet",
        "--retries",
        "0",
        "-r",
        str(requirements),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
