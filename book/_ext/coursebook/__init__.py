"""The book's own Sphinx extension; free of Jupyter Book, so that the sources build on plain Sphinx too."""

from coursebook import access, assets, exercises, notebooks, quiz, reference, widget


def setup(app):
    for part in (assets, access, exercises, notebooks, quiz, reference, widget):
        part.setup(app)
    # Reading in parallel hangs with notebooks that share one cache of runs.
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
