"""The URL of the repository is stated once: a program writes it elsewhere, and removes it again."""

import re
import shutil
import subprocess

import pytest

from keras_vit.version import REPOSITORY
from tests.docs import pages
from tools import repository

FILES = [file for file, _, _ in repository.entries()]
URL = "https://code.example/owner/name"


@pytest.fixture
def copy(tmp_path):
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pages.ROOT / file, tmp_path / file)
    return tmp_path


def contents(root):
    return {file: (root / file).read_text(encoding="utf-8") for file in FILES}


def test_files_contain_the_url_of_the_package(copy):
    assert repository.write(copy, REPOSITORY) == []


def test_another_url_replaces_the_first(copy):
    before = contents(copy)
    assert repository.write(copy, URL) == FILES
    assert all(URL in text for text in contents(copy).values())
    assert repository.write(copy, f"{URL}s") == FILES
    assert all(text.count(f"{URL}s") == text.count(URL) == 1 for text in contents(copy).values())
    repository.write(copy, REPOSITORY)
    assert contents(copy) == before


@pytest.mark.slow
def test_files_contain_no_other_url_of_the_project():
    """Links to this project, under any owner, and the URL itself."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=pages.ROOT, capture_output=True, text=True, check=True
    ).stdout
    pattern = re.compile(
        r"(github|gitlab|codeberg)\.\w+/[\w-]+/keras[-_]vi(t|sion[-_]transformers)\b(?!-)", re.IGNORECASE
    )
    found = []
    for file in filter(None, tracked.split("\0")):
        if (pages.ROOT / file).suffix in (".py", ".md", ".yml", ".cff", ".toml", ".ipynb", ""):
            text = (pages.ROOT / file).read_text(encoding="utf-8", errors="ignore")
            if file not in (*FILES, "keras_vit/version.py") and (
                pattern.search(text) or (REPOSITORY and REPOSITORY in text)
            ):
                found.append(file)
    assert not found
    assert pattern.search("/".join(("https://github.com", "somebody", "keras-vision-transformers")))
