"""nbgrader's settings for this course; found through JUPYTER_CONFIG_PATH=graders."""

c = get_config()  # noqa: F821  (nbgrader defines it)

c.CourseDirectory.course_id = "rltokens"
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError"}

# Checks stop an endless loop in a function themselves, after 10 seconds; this is for one outside.
c.Execute.timeout = 60
# Else each kernel warns on the terminal that it listens on this machine without encryption.
c.Execute.extra_arguments = ["--log-level=ERROR"]

# nbgrader's own lists with two more: a deleted test cell is put back, and warnings cost nothing.
c.Autograde.sanitize_preprocessors = [
    "nbgrader.preprocessors.ClearOutput",
    "nbgrader.preprocessors.DeduplicateIds",
    "nbgrader.preprocessors.OverwriteKernelspec",
    "rltokens.course.preprocessors.RestoreCells",
    "nbgrader.preprocessors.OverwriteCells",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.Autograde.autograde_preprocessors = [
    "nbgrader.preprocessors.Execute",
    "nbgrader.preprocessors.IgnorePattern",
    "nbconvert.preprocessors.ClearMetadataPreprocessor",
    "rltokens.course.preprocessors.KeepVerdict",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
