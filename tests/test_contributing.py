"""CONTRIBUTING.md lists the tests to run after a change, and the code that it names exists."""

import pathlib
import re

import pytest

from tests.import_order import BACKEND_SWITCHES, ORDER, module_name, source_files, unit_of

ROOT = pathlib.Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TABLE = TEXT.partition("| changed | run |\n|---|---|\n")[2].partition("\n\n")[0]
ROWS = {
    tuple(re.findall(r"`([^`]+)`", changed)) or (changed.strip(),): run.strip(" `").split()
    for changed, run in (line.strip("|").split("|") for line in TABLE.splitlines())
}


def test_every_subpackage_is_in_one_row():
    named = [name for names in ROWS for name in names]
    subpackages = [name for name in ORDER if not name.startswith("_")]
    assert sorted(name for name in named if name in ORDER) == sorted([*subpackages, "__main__"])
    paths = [name for name in named if "/" in name or "." in name]
    assert [name for name in paths if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("subpackage", [name for name in ORDER if (ROOT / "keras_vit" / name / "__init__.py").exists()])
def test_each_subpackage_has_a_test_folder_of_its_name(subpackage):
    (tests,) = [tests for names, tests in ROWS.items() if subpackage in names]
    assert tests[0] == ("tests/programs" if subpackage == "cli" else f"tests/{subpackage}")


def test_every_test_is_in_a_row():
    listed = [ROOT / path for tests in ROWS.values() for path in tests]
    assert [str(path) for path in listed if not path.exists()] == []
    files = (ROOT / "tests").rglob("test_*.py")
    missing = [file for file in files if not any(path in (file, *file.parents) for path in listed)]
    assert [str(file.relative_to(ROOT)) for file in missing] == []


# Sections of docstrings, names of Keras and Python, and folders of an installed package.
OUTSIDE = {
    "Args",
    "Raises",
    "References",
    "Returns",
    "Lambda",
    "Literal",
    "__setattr__",
    "keras",
    "ops",
    "pytest",
    "mark",
}
OUTSIDE |= {"saving", "register_keras_serializable", "slow", "long", "_train", "_export"}


def test_files_named_in_contributing_exist():
    """A file is given from the root or from `keras_vit/`. A folder in a description may be anywhere in `keras_vit/`."""
    named = re.findall(r"`(?:python -m )?([\w.]+/[\w./]*|[\w/]+\.(?:py|md|toml|yml))`", TEXT)
    named = {name.replace("test_NAME.py", "").replace("NAME.py", "") for name in named}
    places = (ROOT, ROOT / "keras_vit")
    found = {name for name in named if any((place / name).exists() for place in places)}
    found |= {f"{path.name}/" for path in (ROOT / "keras_vit").rglob("*") if path.is_dir()}
    assert named - found - {".pytest_cache/jax"} == set() and len(named) > 80


@pytest.mark.slow
def test_code_named_in_contributing_exists():
    """Functions, classes, arguments, fields and modules."""
    known = set(OUTSIDE)
    for folder in ("keras_vit", "train", "export", "tests", "tools", "benchmarks", "docs"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            known |= {path.stem, *path.relative_to(ROOT).parts[:-1], *re.findall(r"\b(?:def|class) (\w+)", text)}
            for assigned in re.findall(r"^ *([\w., ]+)(?:: [^=\n]+)? = ", text, re.MULTILINE):
                known |= set(re.findall(r"\w+", assigned))
            known |= set(re.findall(r"^ {4}(\w+): ", text, re.MULTILINE))  # fields
    prose = re.sub(r"^ *```.*?^ *```$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"`@?([A-Za-z_]\w+(?:\.\w+)*)(?:\(.*?\)(?:\[.*?\])?|=)?`", prose))
    named = {name for name in named if not name.endswith((".md", ".py", ".toml", ".yml"))}
    assert {name for name in named if not known.issuperset(name.split("."))} == set() and len(named) > 120


def test_the_subpackages_that_import_tensorflow_are_listed():
    at_top, inside = set(), set()
    for path in source_files(ROOT):
        module = module_name(ROOT, path)
        if module.startswith("keras_vit.") and module not in BACKEND_SWITCHES:
            found = re.findall(r"^( *)(?:import|from) tensorflow", path.read_text(encoding="utf-8"), re.MULTILINE)
            at_top |= {unit_of(module)} if "" in found else set()
            inside |= {unit_of(module)} if any(found) else set()
    (top, functions) = re.findall(r"[Mm]odules of ([^.]*?)(?: and the programs)? import\s+TensorFlow", TEXT)
    assert sorted(re.findall(r"`(\w+)`", top)) == sorted(at_top)
    assert sorted(re.findall(r"`(\w+)`", functions)) == sorted(inside - at_top)
