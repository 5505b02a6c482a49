"""Two steps of our own in ``nbgrader autograde``; `graders/nbgrader_config.py` says where they stand."""

from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_grade

# nbgrader's LimitOutput cuts a long output at its end, where the verdict stands: cut it before, at its head.
LINES_KEPT = 200


class RestoreCells(NbGraderPreprocessor):
    """Put back the locked cells that a submission lacks, each below the course's cell that it followed.

    What a locked cell says is then OverwriteCells' business. nbgrader's own `add_missing_cells` fails
    where the cell before is a locked one without points, as all our graded cells have it.
    """

    def preprocess(self, nb, resources):
        place = resources["nbgrader"]["notebook"], resources["nbgrader"]["assignment"]
        with Gradebook(resources["nbgrader"]["db_url"]) as gradebook:
            released = gradebook.find_notebook(*place)
            points = {cell.name: cell.max_score for cell in released.grade_cells}
            below = 0
            for cell in nb.cells:
                # What DeduplicateIds leaves of a copied cell: CheckCellMetadata would refuse the notebook.
                if cell.metadata.get("nbgrader") == {}:
                    del cell.metadata["nbgrader"]
            for source in released.source_cells:  # in the order of the notebook
                found = [i for i, cell in enumerate(nb.cells) if _grade_id(cell) == source.name]
                if found:
                    below = found[0] + 1
                elif source.locked:
                    self.log.warning("Cell '%s' was deleted: putting it back", source.name)
                    nb.cells.insert(below, _empty_cell(nb, source.cell_type))
                    below += 1
                if source.locked:
                    # Also where the cell is there: a changed setting could cost the whole submission.
                    nb.cells[below - 1].metadata.nbgrader = _settings(source, points.get(source.name))
        return nb, resources


def _grade_id(cell):
    return cell.metadata.get("nbgrader", {}).get("grade_id")


def _empty_cell(nb, cell_type):
    cell = new_code_cell() if cell_type == "code" else new_markdown_cell()
    if nb.nbformat_minor < 5:  # such a notebook, Colab writes them, has no cell ids
        del cell["id"]
    return cell


def _settings(source, points):
    settings = {
        "grade_id": source.name,
        "grade": points is not None,
        "locked": True,
        "solution": False,
        "task": False,
        "schema_version": 3,
        "cell_type": source.cell_type,
        "checksum": source.checksum,
    }
    return settings if points is None else {**settings, "points": points}


class KeepVerdict(NbGraderPreprocessor):
    """What a graded cell prints costs nothing, and its last lines, the verdict, are kept.

    nbgrader gives 0 points for any output on stderr, so also for an honest warning.
    """

    def preprocess_cell(self, cell, resources, cell_index):
        if cell.cell_type == "code" and is_grade(cell):
            printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
            others = [output for output in cell.outputs if output.output_type != "stream"]
            lines = printed.splitlines(keepends=True)
            if len(lines) > LINES_KEPT:
                lines = [f"... {len(lines) - LINES_KEPT} lines before this one ...\n", *lines[-LINES_KEPT:]]
            cell.outputs = [new_output("stream", name="stdout", text="".join(lines)), *others]
        return cell, resources
