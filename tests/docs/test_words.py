"""Pages, docstrings, comments, messages and names of tests use the words of the glossary."""

import json
import re
import subprocess
from collections.abc import Iterator

from tests.docs import pages

GLOSSARY = pages.ROOT / "docs" / "glossary.md"
KINDS = (".py", ".md", ".ipynb", ".html", ".js", ".sh", "Makefile")
EXCEPTED = ("CHANGELOG.md", "docs/glossary.md", "tests/docs/test_words.py")  # history, and the words themselves
# Texts in which an avoided word has another meaning.
ALLOWED = re.compile(
    r"(network|IPv6) address(es)?|(L-BFGS|Newton-Schulz) iterations?|turned (on|off)|torchvision\.transforms",
    re.IGNORECASE,
)
# The strings and comments of a Python file, and the names of its tests.
PYTHON = re.compile(
    r'"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*|(?<=def )test_\w+', re.DOTALL
)
# What is not prose in them: code, commands, URLs, tags, and the names of arguments.
CODE = re.compile(
    r"```.*?```|`[^`]*`|https?:\S+|<[^>\n]+>|\{[^{}]*\}|^ *(>>>|\.\.\.) [^\n]*|[^\n]*keras-vit [^\n]*|^ +\w+: ",
    re.DOTALL | re.MULTILINE,
)


def avoided() -> dict[str, str]:
    """Return the words that the glossary advises against, each with the word to use."""
    rows = re.findall(
        r"^\| ([^|]+) \| (?:\\\||[^|])+ \| ([^|]*) \|$", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE
    )
    return {word.strip(): row[0] for row in rows[1:] for word in row[1].split(",") if word.strip()}


def files() -> Iterator[tuple[str, str]]:
    """Yield the name and the content of each file that people read."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=pages.ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.split("\0"):
        if name.endswith(KINDS):
            yield name, (pages.ROOT / name).read_text(encoding="utf-8")


def blank(found: re.Match) -> str:
    """Return the line breaks of a text, so that line numbers stay."""
    return "\n" * found[0].count("\n") or " "


def prose(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file that people read, each with its line number."""
    if name.endswith(".md"):
        yield 1, pages.prose(text)
    elif name.endswith(".ipynb"):
        for cell in json.loads(text)["cells"]:
            yield 1, pages.prose("".join(cell["source"])) if cell["cell_type"] == "markdown" else ""
    elif name.endswith(".py"):
        for found in PYTHON.finditer(text):
            if found[0].startswith("test_"):
                yield text.count("\n", 0, found.start()) + 1, found[0].replace("_", " ")
            elif " " in found[0]:
                yield text.count("\n", 0, found.start()) + 1, CODE.sub(blank, found[0].strip("\"'"))
    else:
        yield 1, CODE.sub(blank, text)


def wrong_words(name: str, text: str, glossary: dict[str, str]) -> list[str]:
    """Return the avoided words in a file, each with its line and the word to use."""
    lowered = text.lower()
    words = {word: better for word, better in glossary.items() if word in lowered}
    if not words:
        return []
    # Not a part of a path, a file name or a quoted name.
    pattern = re.compile(rf"(?<![\w/.'-])({'|'.join(map(re.escape, words))})(s|es)?(?![\w/]|\.\w)", re.IGNORECASE)
    found = []
    for first, part in prose(name, text):
        for match in pattern.finditer(ALLOWED.sub(blank, part)):
            line = first + part.count("\n", 0, match.start())
            found.append(f"{name}:{line}: {match[0]}; the glossary says {words[match[1].lower()]}")
    return found


def test_texts_use_the_words_of_the_glossary():
    found, glossary = [], avoided()
    for name, text in files():
        if name not in EXCEPTED:
            found += wrong_words(name, text, glossary)
    assert not found, "\n".join(found)


def test_no_file_contains_merge_conflict_markers():
    assert not [name for name, text in files() if re.search(r"^(<{7}|>{7}) ", text, re.MULTILINE)]


def test_words_are_found_in_prose_only():
    """In docstrings, comments, messages and names of tests, but not in code, paths and other meanings."""
    text = """
        def test_artefacts():
            '''unused'''
            artefact = "artefact" + "an `artefact`, {artefact}, a/artefact.txt"  # the network address of a host
            print("one artefact", 'two artefacts')  # an Artefact
    """
    found = wrong_words("tests/a.py", text, avoided())
    words = [(2, "artefacts"), (5, "artefact"), (5, "artefacts"), (5, "Artefact")]
    assert found == [f"tests/a.py:{line}: {word}; the glossary says artifact" for line, word in words]
