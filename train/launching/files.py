"""Files that start a training run on other machines, from the templates in `assets/`."""

import dataclasses
import json
import operator
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence

from keras_vit.util import storage

from .tpus import Slice

TEMPLATES = {"slurm": "slurm.sh", "kubernetes": "job.yaml", "jobset": "jobset.yaml", "tpu-vm": "tpu_vm.sh"}
RECIPES = {"kubernetes": "/recipe/", "jobset": "/recipe/", "tpu-vm": ""}  # directory of the user's recipe file
CLUSTERS = ("kubernetes", "jobset")  # targets whose file contains the user's recipe
COPIES = "/root/.keras"  # directory of the local copies of buckets in a container
GPU_MEMORY = 0.9  # share of a GPU's memory for JAX, which `tools.compile_plan` also uses; JAX's default is 0.75
# Flags of XLA for training on several GPUs: exchange gradients and weights during the computation, and gather the
# weights of a whole block at once (`fsdp`).
XLA_FLAGS = {
    "xla_gpu_enable_latency_hiding_scheduler": True,
    "xla_gpu_all_gather_combine_threshold_bytes": 128 << 20,
    "xla_gpu_reduce_scatter_combine_threshold_bytes": 128 << 20,
}
_SOURCES = {  # of the settings in the templates
    "docs_memory": "https://docs.jax.dev/en/latest/gpu_memory_allocation.html",
    "docs_cache": "https://docs.jax.dev/en/latest/persistent_compilation_cache.html",
    "docs_flags": "https://docs.jax.dev/en/latest/gpu_performance_tips.html",
    "docs_nccl": "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    "docs_rdma": "https://docs.nvidia.com/networking/display/kubernetes2540/getting-started-kubernetes.html",
}
_ASSETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "assets")
_CONTROL = re.compile(r"[\0-\x1f\x7f-\x9f\u2028\u2029]")
_FIELD = re.compile(r"^( *)\{\{([\w.]+)\}\}\n|\{\{([\w.]+)\}\}", re.MULTILINE)  # on its own line, or within a line


@dataclasses.dataclass(frozen=True)
class Job:
    """Training job: its target, the arguments of `keras-vit train`, and its machines. `output` is the file to write."""

    target: str
    arguments: Sequence[str]
    workdir: str
    backend: str
    restarts: int
    output: str
    recipe_file: str | None = None  # the user's recipe file, if any
    tpu: Slice | None = None
    container_image: str = ""
    nodes: int = 1
    gpus: int = 0
    tasks_per_node: int = 1
    slices: int = 1
    spot: bool = False

    def render(self) -> str:
        """Return the content of the file."""
        name, in_bucket = resource_name(self.workdir), storage.is_bucket_url(self.workdir)
        recipe, recipe_file = "", recipe_name(self.recipe_file or "")
        if self.recipe_file and self.target in CLUSTERS:
            with open(self.recipe_file, encoding="utf-8-sig") as source:
                recipe = source.read()
        lines = "".join(recipe.split("\n")).replace("\t", "")
        for flag, text in (("workdir", self.workdir), ("output", self.output), ("config", lines)):
            if found := _CONTROL.search(text):
                raise ValueError(f"--{flag} must not contain control characters. Received: {found[0]!r}.")
        mount = COPIES if in_bucket else "/" + self.workdir.split("/")[1]
        if self.target in CLUSTERS and ":" in mount:
            raise ValueError(f"--workdir must be in a mounted directory without a colon. Received: {self.workdir}.")
        copy = f'tpu tpu-vm scp {shlex.quote(self.recipe_file or "")} "$name":{recipe_file} --worker=all'
        values = {
            "name": name,
            "container_image": _yaml(self.container_image),
            "file": shlex.quote(self.output),
            "run": shlex.quote(self.workdir),
            "parent": shlex.quote(os.path.dirname(self.workdir)),
            "mount": _yaml(mount),
            **_SOURCES,
            "gpu_memory": GPU_MEMORY,
            "xla_flags": " ".join(f"--{name}={str(value).lower()}" for name, value in XLA_FLAGS.items()),
            "cache": _yaml(f"{self.workdir}/jax-cache"),
            "quoted_cache": shlex.quote(f"{self.workdir}/jax-cache"),
            "extras": "cpu,jax-tpu,data" + ",buckets" * in_bucket,
            "bin": shlex.quote(os.path.dirname(shutil.which("keras-vit") or sys.executable)),
            "no_gpus": "" if self.gpus else "#",
            "no_spot": "" if self.spot else "# ",
            "spot": "--spot" if self.spot else "",
            "command": " \\\n    ".join(["keras-vit train", *map(shlex.quote, self.arguments)]),
            "arguments": "\n".join(f"- {_yaml(text)}" for text in self.arguments).replace("$", "$$"),
            "workers": json.dumps([f"{name}-{index}.{name}:2222" for index in range(self.nodes)]),
            "recipe": recipe,
            "recipe_name": _yaml(recipe_file),
            "recipe_mount": f"- {{name: recipe, mountPath: {RECIPES.get(self.target)}}}" if recipe else "",
            "recipe_volume": f"- {{name: recipe, configMap: {{name: {name}-recipe}}}}" if recipe else "",
            "copy": copy if self.recipe_file else "",
        }

        kept = {  # prefixes of lines that some files lack
            "if_volume": not in_bucket,
            "if_bucket": in_bucket,
            "if_gpus": self.gpus,
            "if_jax_gpus": self.gpus and self.backend == "jax",
        }
        values |= dict.fromkeys(kept, "")

        def field(found: re.Match) -> str:
            """Fill a field `{{name}}` of a template. A field on its own line is replaced by any number of lines."""
            key = found[2] or found[3]
            value = str(values[key] if key in values else operator.attrgetter(key)(self))
            if found[3] or not value:
                return value
            return "".join(f"{found[1]}{line}\n" if line else "\n" for line in value.rstrip("\n").split("\n"))

        names = "|".join(name for name, is_kept in kept.items() if not is_kept)
        omitted = re.compile(rf".*\{{\{{({names})\}}\}}.*\n")
        text = ""
        for template in (TEMPLATES[self.target], *(["recipe.yaml"] if recipe else [])):
            with open(os.path.join(_ASSETS, template), encoding="utf-8") as file:
                text += _FIELD.sub(field, omitted.sub("", file.read()))
        return text


def _yaml(text: str) -> str:
    """Return a text as a quoted scalar of YAML."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)


def recipe_name(path: str) -> str:
    """Return the name of a recipe file on the hosts. Keys of a ConfigMap have only these characters."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(path))


def resource_name(workdir: str) -> str:
    """Return the name of a run directory in a form that Kubernetes, Slurm and Google Cloud accept."""
    name = re.sub(r"[^a-z0-9]+", "-", os.path.basename(workdir).lower()).strip("-")[:40].strip("-")
    return name if name[:1].isalpha() else f"run-{name}".strip("-")
