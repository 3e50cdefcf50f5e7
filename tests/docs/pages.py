"""The pages of the documentation: their code blocks, links and headings."""

import dataclasses
import pathlib
import re

import keras

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
# A block that cannot run here says why, on the line before its fence: <!-- docs: needs network -->
REASONS = ("another package", "data", "hardware", "network", "server", "JAX", "time")
COMMANDS = ("bash", "sh", "console")


def name_of(path: pathlib.Path) -> str:
    """Return the name of a page relative to the root."""
    return path.relative_to(ROOT).as_posix()


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes:
        language: Word after the opening fence.
        code: Content.
        line: Number of its first line in the page.
        needs: Reason why it cannot run here, or None.
    """

    language: str
    code: str
    line: int
    needs: str | None


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found, lines = [], text.splitlines()
    number = 0
    while number < len(lines):
        opening = re.match(r"( *)(`{3,})([\w-]*)", lines[number])
        if opening:
            indent, fence, language = opening.groups()
            before = next((line for line in reversed(lines[:number]) if line.strip()), "")
            marker = re.match(r"\s*<!-- docs: needs (.+?) -->$", before)
            end = next(i for i in range(number + 1, len(lines)) if lines[i].strip() == fence)
            code = "\n".join(line.removeprefix(indent) for line in lines[number + 1 : end])
            found.append(Block(language, code + "\n", number + 2, marker and marker[1]))
            number = end
        number += 1
    return found


def prose(text: str) -> str:
    """Return a page without code blocks, inline code, HTML comments and link targets, with its line numbers."""
    kept, fence = [], None
    for line in text.splitlines():
        opening = re.match(r" *(`{3,})", line)
        if fence:
            fence = None if line.strip() == fence else fence
            kept.append("")
        elif opening:
            fence = opening[1]
            kept.append("")
        else:
            line = re.sub(r"`[^`]*`|<!--.*?-->|<[^>]+>|https?://\S+", " ", line)
            kept.append(re.sub(r"\]\([^)]*\)", "]", line))
    return "\n".join(kept)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page: its headings, as code hosts and the site spell them, and explicit ones."""
    found = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#+ +(.+)$", "\n".join(_outside_fences(text)), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        found.add(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain)))
    return found


def links(text: str) -> list[str]:
    """Return the targets of links and images that are not on the web."""
    outside = "\n".join(_outside_fences(text))
    outside = re.sub(r"`[^`\n]*`", "", outside)
    targets = re.findall(r"\]\(<?([^)>\s]+)>?(?: \"[^\"]*\")?\)", outside)
    targets += re.findall(r'(?:src|srcset|href)="([^"]+)"', outside)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def _outside_fences(text: str) -> list[str]:
    kept, fence = [], None
    for line in text.splitlines():
        opening = re.match(r" *(`{3,})", line)
        if fence:
            fence = None if line.strip() == fence else fence
        elif opening:
            fence = opening[1]
        else:
            kept.append(line)
    return kept


def compile_for_a_few_steps(monkeypatch) -> None:
    """Let `model.compile` run op by op: a compiled or traced step takes seconds before the first of a few steps."""
    compile = keras.Model.compile
    monkeypatch.setattr(
        keras.Model, "compile", lambda self, *args, **kwargs: compile(self, *args, **{"run_eagerly": True, **kwargs})
    )
