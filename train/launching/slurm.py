"""A script for `sbatch`."""

import os
import shlex
import shutil
import sys

from .jobs import Job


def render(job: Job, nodes: int, gpus: int, tasks_per_node: int) -> str:
    """Return the script of a training on nodes with `gpus` GPUs each, in one process per node or per GPU."""
    if gpus and tasks_per_node not in (1, gpus):
        raise ValueError(
            f"--tasks_per_node must be 1, for one process with all GPUs of a node, or --gpus={gpus}, for one process "
            f"per GPU. Received: --tasks_per_node={tasks_per_node}."
        )
    return job.render(
        "slurm.sh",
        nodes=nodes,
        gpus=f"#SBATCH --gpus-per-node={gpus}" if gpus else "",
        tasks=tasks_per_node,
        bin=shlex.quote(os.path.dirname(shutil.which("keras-vit") or sys.executable)),
        run=shlex.quote(job.workdir),
        command=f"exec {job.shell_command()}",
    )
