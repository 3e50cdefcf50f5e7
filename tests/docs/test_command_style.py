"""Commands have one form everywhere, `keras-vit ...`, which exists wherever the package is installed."""

import re

import pytest

from keras_vit.cli import commands
from tests.docs import pages
from tests.docs.command_lines import check

MODULES = "|".join(re.escape(module) for module in commands.PROGRAMS.values())
ONLY_IN_A_CLONE = re.compile(rf"python -m (?:train|export)\b|train/configs/|(?<![\w.])(?:{MODULES})\b(?!\()")
DEVELOPERS = {
    "keras_vit/cli/commands.py",  # the table of the commands
    "docs/results.md",  # made by `benchmarks.results`, which needs a clone
}
USERS = [
    *(path for folder in ("keras_vit", "train", "export") for path in sorted((pages.ROOT / folder).rglob("*.py"))),
    *sorted((pages.ROOT / "docs").rglob("*.md")),
    pages.ROOT / "README.md",
    pages.ROOT / "Makefile",
]
RECIPES = sorted((pages.ROOT / "train" / "configs").glob("[a-z]*.py"))


@pytest.mark.slow
def test_nothing_that_users_read_names_a_module_or_a_file_of_the_clone():
    found = []
    for path in USERS:
        name = path.relative_to(pages.ROOT).as_posix()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if name not in DEVELOPERS and ONLY_IN_A_CLONE.search(line):
                found.append(f"{name}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_commands_in_recipe_docstrings_are_valid(path):
    """They name programs, flags, recipes and fields that exist."""
    text = re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8").split('"""')[1].replace("\\\\", "\\"))
    found = re.findall(r"^ {4}(\S+ .*)$", text, re.MULTILINE)
    for command in found:
        check(command)
    assert path.stem == "common" or any(f"keras-vit train --config={path.stem}" in command for command in found)
