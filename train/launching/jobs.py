"""A training that is started elsewhere, and the file that starts it."""

import dataclasses
import os
import re
import shlex
from collections.abc import Sequence

from keras_vit import _io

ASSETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "assets")
_FIELD = re.compile(r"^( *)\{\{(\w+)\}\}\n|\{\{(\w+)\}\}", re.MULTILINE)  # on a line of its own, or in a line


@dataclasses.dataclass(frozen=True)
class Job:
    """A training: the arguments of `keras-vit train`, the run directory and the backend.

    `recipe_file` is the file of a recipe that is not in the package. `output` is the file to write.
    """

    arguments: Sequence[str]
    workdir: str
    backend: str
    restarts: int
    output: str
    recipe_file: str | None = None

    @property
    def name(self) -> str:
        """The name of the job."""
        return resource_name(self.workdir)

    @property
    def mount(self) -> str:
        """The directory at which shared storage is mounted: the first one of the path of the run directory."""
        return "/" + self.workdir.lstrip("/").partition("/")[0]

    def shell_command(self) -> str:
        """Return the command for a shell, one argument per line."""
        return " \\\n    ".join(["keras-vit train", *map(shlex.quote, self.arguments)])

    def render(self, template: str, **values: object) -> str:
        """Return a template of `assets/` with its fields, written `{{name}}`.

        A field on a line of its own takes as many lines as its value, none for an empty one, with its indentation.
        """
        own = {"name": self.name, "output": self.output, "backend": self.backend, "restarts": self.restarts}
        values = {**own, "workdir": self.workdir, "mount": self.mount, **values}

        def field(found: re.Match) -> str:
            if found[3]:
                return str(values[found[3]])
            lines = str(values[found[2]]).rstrip("\n").split("\n")
            return "".join(f"{found[1]}{line}\n" if line else "\n" for line in lines) if lines != [""] else ""

        with open(os.path.join(ASSETS, template), encoding="utf-8") as file:
            return _FIELD.sub(field, file.read())


def resource_name(workdir: str) -> str:
    """Return the name of a run directory as Kubernetes, Slurm and Google Cloud accept it."""
    name = re.sub(r"[^a-z0-9]+", "-", os.path.basename(workdir).lower()).strip("-")[:40].strip("-")
    return name if name[:1].isalpha() else f"run-{name}".strip("-")


def write(path: str, text: str, overwrite: bool) -> None:
    """Write a file. A file of other content, which somebody may have changed, is only replaced with `overwrite`."""
    if os.path.exists(path) and not overwrite:
        with open(path, encoding="utf-8", errors="replace") as file:
            if file.read() != text:
                raise FileExistsError(
                    f"Expected no file {path!r}, or one with the content to write. Received: a file with other "
                    "content. --overwrite replaces the file, --output=FILE writes another one."
                )
    _io.write_text(path, text)
