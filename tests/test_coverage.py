"""What the course set out to cover has a place in the book, or says in which chapter it will have one."""

import re
from collections import Counter

import pytest
import yaml
from conftest import ROOT

BOOK = ROOT / "book"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in BOOK.glob("*.md")}
ROWS = [
    pytest.param(row, id=f"{document}: {row['what']}")
    for document, kinds in yaml.safe_load((BOOK / "coverage.yml").read_text(encoding="utf-8")).items()
    for rows in kinds.values()
    for row in rows
]
LABELS = Counter(label for text in PAGES.values() for label in re.findall(r"^\(([\w-]+)\)=$", text, re.M))
LABELS.update(
    f"exercise-{n}" for text in PAGES.values() for n in re.findall(r"\{exercise\} (\w+)$", text, re.M)
)
KEYS = set(re.findall(r"^@\w+\{(\w+),$", (BOOK / "references.bib").read_text(encoding="utf-8"), re.M))


def test_labels_are_unique():
    assert [label for label, count in LABELS.items() if count > 1] == []


@pytest.mark.parametrize("row", ROWS)
def test_the_place_is_there(row):
    assert set(row) <= {"what", "at", "bib", "later"} and set(row) - {"what"}
    if "at" in row:
        assert row["at"] in LABELS, f"no page of the book has the label {row['at']}"
    if "bib" in row:
        assert row["bib"] in KEYS, f"references.bib has no {row['bib']}"
    if "later" in row:
        assert re.fullmatch(r"chapter [4-8]", row["later"])


def test_what_is_cited_can_be_found():
    """Every work in the bibliography has an arXiv number, a DOI or an address."""
    entries = re.split(r"\n(?=@)", (BOOK / "references.bib").read_text(encoding="utf-8"))
    assert [e.partition("\n")[0] for e in entries if not re.search(r"\b(eprint|doi|url) = ", e)] == []
