"""What pages load, and when a page is out of date."""

import hashlib
import shutil
from pathlib import Path

from sphinx.errors import ExtensionError


def setup(app):
    drop_thebe(app)
    app.connect("config-inited", add_vendored)
    app.connect("config-inited", forget_old_runs)
    app.connect("env-get-outdated", all_pages_if_stale)
    app.connect("build-finished", remember_code)


def root(app):
    """The course's folder, which holds book/, graders/ and release/."""
    return Path(app.srcdir).parent


def add_vendored(app, config):
    # Outside of _static, where Jupyter Book would put every script on every page.
    static = root(app) / "build" / "vendor" / "static"
    if not static.is_dir():
        raise ExtensionError(f"{static} is missing: run python book/vendor.py first")
    config.html_static_path.append(str(static))


def drop_thebe(app):
    # Jupyter Book always loads sphinx_thebe: it names a CDN on every page and declares its constants twice.
    for event, listeners in app.events.listeners.items():
        kept = [one for one in listeners if not one.handler.__module__.startswith("sphinx_thebe")]
        app.events.listeners[event] = kept
    app.registry.css_files[:] = [one for one in app.registry.css_files if one[0] != "sphinx-thebe.css"]


def forget_old_runs(app, config):
    # The cache of executed cells knows the cells alone, not the package that they import.
    app.course_code = fingerprint(root(app) / "src")
    app.built_from = read(stamp(app))
    if not app.built_from.startswith(app.course_code):
        shutil.rmtree(Path(app.outdir).parent / ".jupyter_cache", ignore_errors=True)


def all_pages_if_stale(app, env, added, changed, removed):
    return list(env.found_docs) if app.built_from != app.course_code else []


def remember_code(app, exception):
    if exception is None:
        # Sphinx does not repeat the warnings of unchanged pages: a second try would pass.
        stamp(app).write_text(app.course_code + (", with warnings" if app._warncount else ""), "utf-8")


def stamp(app):
    return Path(app.outdir).parent / "course-code.sha256"


def read(path):
    return path.read_text("utf-8") if path.is_file() else ""


def fingerprint(folder):
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
