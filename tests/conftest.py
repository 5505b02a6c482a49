from pathlib import Path

import pytest

from rltokens.course.exercises import load_course

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def course():
    return load_course(ROOT)
