"""CONTRIBUTING.md lists the tests to run after a change: each room has a row, and each test is in a row."""

import pathlib
import re

import pytest

from tests.import_order import ORDER

ROOT = pathlib.Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TABLE = TEXT.partition("| changed | run |\n|---|---|\n")[2].partition("\n\n")[0]
ROWS = {
    tuple(re.findall(r"`([^`]+)`", changed)) or (changed.strip(),): run.strip(" `").split()
    for changed, run in (line.strip("|").split("|") for line in TABLE.splitlines())
}


def test_every_room_is_in_one_row():
    named = [name for names in ROWS for name in names]
    rooms = [name for name in ORDER if not name.startswith("_")]
    assert sorted(name for name in named if name in ORDER) == sorted([*rooms, "__main__"])
    paths = [name for name in named if "/" in name or "." in name]
    assert [name for name in paths if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("room", [name for name in ORDER if (ROOT / "keras_vit" / name / "__init__.py").exists()])
def test_a_room_has_a_folder_of_tests_with_its_name(room):
    (tests,) = [tests for names, tests in ROWS.items() if room in names]
    assert tests[0] == ("tests/programs" if room == "cli" else f"tests/{room}")


def test_every_test_is_in_a_row():
    listed = [ROOT / path for tests in ROWS.values() for path in tests]
    assert [str(path) for path in listed if not path.exists()] == []
    files = (ROOT / "tests").rglob("test_*.py")
    missing = [file for file in files if not any(path in (file, *file.parents) for path in listed)]
    assert [str(file.relative_to(ROOT)) for file in missing] == []
