"""Build the documentation as a website in `build/site`.

    python docs/site.py    # make docs

The pages of `docs/` link to files beside that folder, which code hosts show. The site has its own copies: this program
stages the pages in `build/docs`, adds `CONTRIBUTING.md`, `CHANGELOG.md` and the notebooks of `examples/` as pages, and
adapts the links. Then it runs Zensical in strict mode: a broken link or an unknown name is an error.
"""

import base64
import json
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
STAGE = ROOT / "build" / "docs"
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
ASSETS = {".svg", ".png", ".webp", ".css"}


def stage() -> None:
    """Copy all pages to `build/docs`."""
    shutil.rmtree(STAGE, ignore_errors=True)
    docs = ROOT / "docs"
    for path in sorted(docs.rglob("*")):
        target = STAGE / path.relative_to(docs)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(adapted(read(path), path, path.relative_to(docs)), encoding="utf-8")
        elif path.suffix in ASSETS:
            shutil.copy(path, target)
    for name, page in PAGES.items():
        path = ROOT / name
        (STAGE / page).write_text(adapted(read(path), path, pathlib.Path(page)), encoding="utf-8")
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        folder = STAGE / "examples"
        folder.mkdir(exist_ok=True)
        write_notebook(path, folder)


def read(path: pathlib.Path) -> str:
    """Read a text file."""
    return path.read_text(encoding="utf-8")


def adapted(text: str, path: pathlib.Path, page: pathlib.Path) -> str:
    """Return a text with links that fit its place in the site.

    Args:
        text: Markdown.
        path: File that it comes from.
        page: Place in the site, relative to its root.
    """
    up = "../" * (len(page.parts) - 1)

    def replace(match: re.Match) -> str:
        label, link = match.groups()
        target, hash_sign, anchor = link.partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        target = (path.parent / target).resolve()
        if target == ROOT / "README.md":
            return f"[{label}]({up}README.md)"
        if target.parent == ROOT and target.name in PAGES:
            return f"[{label}]({up}{PAGES[target.name]}{hash_sign}{anchor})"
        if target.suffix == ".ipynb":
            return f"[{label}]({up}examples/{target.stem}.md)"
        if target.is_relative_to(ROOT / "docs"):
            if target.is_dir():
                target /= "README.md"
            inside = target.relative_to(ROOT / "docs").as_posix()
            return f"[{label}]({up}{inside}{hash_sign}{anchor})"
        return label if label.startswith("`") else f"`{target.relative_to(ROOT).as_posix()}`"  # a file of the code

    text = re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", replace, text)
    # In a table, code hosts need `a\|b` for the code a|b, and Python-Markdown shows the backslash.
    return re.sub(r"^\|.*$", lambda row: re.sub(r"`[^`]*`", unescaped, row[0]), text, flags=re.MULTILINE)


def unescaped(code: re.Match) -> str:
    """Return code without the backslashes before vertical bars."""
    return code[0].replace(r"\|", "|")


def write_notebook(path: pathlib.Path, folder: pathlib.Path) -> None:
    """Write a notebook with its outputs as a page, and its images beside it."""
    parts, images = [], 0
    for cell in json.loads(read(path))["cells"]:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(adapted(source, path, pathlib.Path("examples", path.name)))
        elif cell["cell_type"] == "code":
            parts.append(f"```python\n{source}\n```")
            for output in cell["outputs"]:
                content = output.get("data", {})
                if "image/png" in content:
                    images += 1
                    name = f"{path.stem}_{images}.png"
                    (folder / name).write_bytes(base64.b64decode("".join(content["image/png"])))
                    parts.append(f"![]({name})")
                else:
                    text = "".join(output.get("text", content.get("text/plain", ""))).rstrip()
                    parts.append(f"```text\n{text}\n```")
    parts.append(f"*This page is `examples/{path.name}` of the repository.*")
    (folder / f"{path.stem}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def break_lines() -> None:
    """Let names in headings break after a period, and code only between its words, not after a hyphen."""
    for path in (ROOT / "build" / "site").rglob("*.html"):
        heading = r'(?<=<span class="doc doc-object-name )[^<]*'
        text = re.sub(heading, lambda name: name[0].replace(".", ".<wbr>"), read(path))
        path.write_text(re.sub(r"(?<=<code>)[^<]+(?=</code>)", with_whole_words, text), encoding="utf-8")


def with_whole_words(code: re.Match) -> str:
    """Return the HTML of code whose words with hyphens do not break, unless they are too long for a phone."""
    return re.sub(r"(?<!\S)(?=\S*-)\S{1,36}(?!\S)", r'<span class="word">\g<0></span>', code[0])


def main() -> None:
    """Stage the pages and build the site."""
    stage()
    # The command beside this interpreter; a copy elsewhere could not import the package.
    zensical = pathlib.Path(sys.executable).with_name("zensical")
    if not zensical.exists():
        sys.exit("The site is built with Zensical: pip install 'keras-vision-transformers[docs]'")
    arguments = [str(zensical), "build", "--strict", "--clean", "--config-file", str(ROOT / "mkdocs.yml")]
    exit_code = subprocess.run(arguments, cwd=ROOT, check=False).returncode
    break_lines()
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
