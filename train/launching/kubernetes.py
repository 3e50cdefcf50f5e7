"""YAML for Kubernetes: an Indexed Job for GPUs or CPUs, a JobSet for slices of TPUs."""

import json
import os

from . import tpus
from .jobs import Job

RECIPES = "/recipe"  # where a recipe file of the user is mounted
_PORT = 2222


def render_job(job: Job, nodes: int, gpus: int, image: str) -> str:
    """Return an Indexed Job with one pod per node, and the service by which the pods find each other."""
    workers = [f"{job.name}-{index}.{job.name}:{_PORT}" for index in range(nodes)]
    return _render(
        job,
        "job.yaml",
        image,
        nodes=nodes,
        gpus=f"nvidia.com/gpu: {gpus}" if gpus else "",
        workers=json.dumps(workers),
        port=_PORT,
    )


def render_jobset(job: Job, slice_type: tpus.Slice, slices: int, spot: bool, image: str) -> str:
    """Return a JobSet with one Job per slice, and one pod per host of it."""
    return _render(
        job,
        "jobset.yaml",
        image,
        slices=slices,
        hosts=slice_type.hosts,
        chips=slice_type.chips_per_vm,
        accelerator=slice_type.generation.gke,
        topology=slice_type.topology,
        machine=slice_type.machine,
        spot='cloud.google.com/gke-spot: "true"' if spot else "",
    )


def _render(job: Job, template: str, image: str, **values: object) -> str:
    file, text = "", ""
    if job.recipe_file:
        file = os.path.basename(job.recipe_file)
        with open(job.recipe_file, encoding="utf-8") as source:
            text = source.read()
    values["recipe"] = job.render("recipe.yaml", file=file, text=text) if file else ""
    values["recipe_mount"] = f"- {{name: recipe, mountPath: {RECIPES}}}" if file else ""
    values["recipe_volume"] = f"- {{name: recipe, configMap: {{name: {job.name}-recipe}}}}" if file else ""
    # Kubernetes would replace $(NAME) in an argument.
    arguments = "\n".join(f"- {json.dumps(text)}" for text in job.arguments).replace("$(", "$$(")
    return job.render(template, image=json.dumps(image), arguments=arguments, **values)
