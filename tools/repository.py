"""Write the URL of the repository into the files that cannot import it.

    python -m tools.repository

The URL is `REPOSITORY` in `keras_vit/version.py`, which `setup.py` reads directly. An empty URL removes the
lines.
"""

import pathlib
import re
import sys
from collections.abc import Iterator

from keras_vit.util import file_io
from keras_vit.version import REPOSITORY

ROOT = pathlib.Path(__file__).resolve().parents[1]
_URL = "{url}"
_CONTACT = """blank_issues_enabled: true
contact_links:
  - name: Documentation
    url: {url}/tree/main/docs
    about: Guides, tutorials and frequent questions
"""
# By file: a text that occurs once in the file, and its replacement with a URL.
_TEXTS = {
    "CITATION.cff": ("type: software\n", "type: software\nrepository-code: {url}\n"),
    "mkdocs.yml": (
        "site_description: Vision Transformers for Keras 3\n",
        "site_description: Vision Transformers for Keras 3\nrepo_url: {url}\n",
    ),
    "SECURITY.md": ("Security tab of the repository,", "Security tab of [the repository]({url}/security),"),
    ".github/ISSUE_TEMPLATE/config.yml": ("blank_issues_enabled: true\n", _CONTACT),
}
_NOTEBOOKS = {
    "fine_tune_own_images": '"# Fine-tune on your own images\\n",\n',
    "inspect_a_model": '"# Inspect a model\\n",\n',
}


def entries() -> Iterator[tuple[str, str, str]]:
    """Yield each file with its text without a URL and its text with a URL."""
    for file, texts in _TEXTS.items():
        yield file, *texts
    for name, title in _NOTEBOOKS.items():
        link = f'    "\\n",\n    "[In the repository]({_URL}/blob/main/examples/{name}.ipynb)\\n",\n'
        yield f"examples/{name}.ipynb", title, title + link


def write(root: pathlib.Path = ROOT, url: str = REPOSITORY) -> list[str]:
    """Write or replace the URL in all files under `root`, and return the changed files."""
    changed = []
    for file, plain, filled in entries():
        before = (root / file).read_text(encoding="utf-8")
        found = re.escape(filled).replace(re.escape(_URL), r"https?://[^\s)]+?")
        text = plain.join(re.split(found, before))
        if text.count(plain) != 1:
            raise ValueError(f"{file} must contain {plain!r} once. It has it {text.count(plain)} times.")
        if url:
            text = text.replace(plain, filled.replace(_URL, url))
        if text != before:
            file_io.write_text(root / file, text)
            changed.append(file)
    return changed


if __name__ == "__main__":
    sys.stdout.write("".join(f"{file}\n" for file in write()))
