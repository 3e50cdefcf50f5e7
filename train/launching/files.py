"""The files that start a training elsewhere, from the templates in `assets/`."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence

from keras_vit import _io

from .tpus import Slice

TEMPLATES = {"slurm": "slurm.sh", "kubernetes": "job.yaml", "jobset": "jobset.yaml", "tpu-vm": "tpu_vm.sh"}
RECIPES = {"kubernetes": "/recipe/", "jobset": "/recipe/", "tpu-vm": ""}  # the place of a recipe file of the user
_ASSETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "assets")
_FIELD = re.compile(r"^( *)\{\{(\w+)\}\}\n|\{\{(\w+)\}\}", re.MULTILINE)  # on a line of its own, or in a line


@dataclasses.dataclass(frozen=True)
class Job:
    """A training: a place, the arguments of `keras-vit train`, and machines. `output` is the file to write."""

    place: str
    arguments: Sequence[str]
    workdir: str
    backend: str
    restarts: int
    output: str
    recipe_file: str | None = None  # of the user
    image: str = ""
    nodes: int = 1
    gpus: int = 0
    tasks: int = 1  # per node
    tpu: Slice | None = None
    slices: int = 1
    spot: bool = False

    def render(self) -> str:
        """Return the content of the file."""
        name, file = resource_name(self.workdir), os.path.basename(self.recipe_file or "")
        command = " \\\n    ".join(["keras-vit train", *map(shlex.quote, self.arguments)])
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | {
            "name": name,
            "image": json.dumps(self.image),
            "run": shlex.quote(self.workdir),
            "parent": shlex.quote(os.path.dirname(self.workdir)),
            "mount": "/" + self.workdir.split("/")[1],
            "bin": shlex.quote(os.path.dirname(shutil.which("keras-vit") or sys.executable)),
            "no_gpus": "" if self.gpus else "#",
            "no_spot": "" if self.spot else "# ",
            "spot": "--spot" if self.spot else "",
            "command": command,
            "arguments": "\n".join(f"- {json.dumps(text)}" for text in self.arguments).replace("$(", "$$("),
            "workers": json.dumps([f"{name}-{index}.{name}:2222" for index in range(self.nodes)]),
            "recipe": "",
            "recipe_mount": f"- {{name: recipe, mountPath: {RECIPES.get(self.place)}}}" if file else "",
            "recipe_volume": f"- {{name: recipe, configMap: {{name: {name}-recipe}}}}" if file else "",
            "copy": f'tpu tpu-vm scp {shlex.quote(self.recipe_file)} "$name": --worker=all' if self.recipe_file else "",
        }
        if self.tpu:
            slice_values = {
                key: getattr(self.tpu, key) for key in ("name", "hosts", "chips_per_vm", "topology", "machine")
            }
            values |= {f"tpu_{key}": value for key, value in slice_values.items()}
            values |= {"tpu_label": self.tpu.generation.label, "tpu_runtime": self.tpu.generation.runtime}
        if self.recipe_file:
            with open(self.recipe_file, encoding="utf-8") as source:
                values["recipe"] = _render("recipe.yaml", {"name": name, "file": file, "text": source.read()})
        return _render(TEMPLATES[self.place], values)


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


def _render(template: str, values: dict) -> str:
    """Return a template with its fields `{{name}}`. A field on a line of its own becomes as many lines, or none."""

    def field(found: re.Match) -> str:
        if found[3]:
            return str(values[found[3]])
        lines = str(values[found[2]]).rstrip("\n").split("\n")
        return "".join(f"{found[1]}{line}\n" if line else "\n" for line in lines) if lines != [""] else ""

    with open(os.path.join(_ASSETS, template), encoding="utf-8") as file:
        return _FIELD.sub(field, file.read())
