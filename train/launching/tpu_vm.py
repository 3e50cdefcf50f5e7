"""A script of `gcloud` commands for the VMs of a TPU slice."""

import os
import shlex

from . import tpus
from .jobs import Job


def render(job: Job, slice_type: tpus.Slice, spot: bool) -> str:
    """Return the script that creates a slice as a queued resource, trains on all of its hosts, and deletes it."""
    copy = f'tpu tpu-vm scp {shlex.quote(job.recipe_file)} "$name": --worker=all' if job.recipe_file else ""
    return job.render(
        "tpu_vm.sh",
        accelerator=slice_type.name,
        runtime=slice_type.generation.runtime,
        spot=" --spot" if spot else "",
        mount=os.path.dirname(job.workdir),
        copy=copy,
        command=f"~/keras-vit/bin/{job.shell_command()}",
    )
