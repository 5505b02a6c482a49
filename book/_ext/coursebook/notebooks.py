"""`{notebook} CHAPTER`, the links to a chapter's exercise notebook; and each page's own run as a notebook."""

import shutil
import zipfile
from pathlib import Path

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.osutil import relative_uri

from coursebook.html import add_node

logger = logging.getLogger(__name__)


class notebook_links(nodes.General, nodes.Element):
    """Links to the released notebook of `chapter`."""


def setup(app):
    add_node(app, notebook_links, visit_links, lambda self, node: None)
    app.add_directive("notebook", NotebookDirective)
    app.connect("html-page-context", publish_releases)
    app.connect("html-page-context", offer_run_of_page, priority=100)


class NotebookDirective(SphinxDirective):
    required_arguments = 1

    def run(self):
        chapter = self.arguments[0]
        files = [released(self.env.srcdir, chapter) / name for name in (f"{chapter}.ipynb", "given.py")]
        missing = [str(path) for path in files if not path.is_file()]
        if missing:
            logger.warning(
                "%s: missing; run `make notebooks` first", missing[0], location=self.get_location()
            )
            return []
        for path in files:
            self.env.note_dependency(str(path))
        return [notebook_links(chapter=chapter)]


def released(srcdir, chapter):
    return Path(srcdir).parent / "release" / chapter


def visit_links(self, node):
    chapter = node["chapter"]
    here = self.builder.get_target_uri(self.builder.current_docname)
    zipped, alone = (relative_uri(here, f"notebooks/{chapter}{kind}") for kind in (".zip", ".ipynb"))
    self.body.append(
        f'<p class="notebook-links"><strong>Work in a notebook.</strong> '
        f'<a href="{zipped}" download>{chapter}.zip</a> holds the notebook of this chapter and the '
        f'helper file that it imports; <a href="{alone}" download>{chapter}.ipynb</a> is the notebook '
        "alone.</p>\n"
    )


def publish_releases(app, pagename, templatename, context, doctree):
    if doctree is None:
        return
    for chapter in {node["chapter"] for node in doctree.findall(notebook_links)}:
        source, target = released(app.srcdir, chapter), Path(app.outdir) / "notebooks"
        target.mkdir(exist_ok=True)
        shutil.copyfile(source / f"{chapter}.ipynb", target / f"{chapter}.ipynb")
        with zipfile.ZipFile(target / f"{chapter}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name in (f"{chapter}.ipynb", "given.py"):
                # A fixed date: the same files give the same bytes.
                entry = zipfile.ZipInfo(f"{chapter}/{name}", date_time=(2026, 1, 1, 0, 0, 0))
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, (source / name).read_bytes(), zipfile.ZIP_DEFLATED)


def offer_run_of_page(app, pagename, templatename, context, doctree):
    # The theme's download menu offers the executed page as a notebook only to books with Binder.
    made = Path(app.outdir).parent / "jupyter_execute" / f"{pagename}.ipynb"
    if doctree is not None and made.is_file():
        target = Path(app.outdir) / "_sources" / f"{pagename}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, target)
        context["ipynb_source"] = f"{pagename}.ipynb"
