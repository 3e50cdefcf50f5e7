"""Write the file that starts a training run on Slurm, Kubernetes or TPU VMs, or train in several local processes.

    keras-vit launch digits --target=local --processes=4
    keras-vit launch vit_s16_i1k --target=slurm --workdir=/shared/s16 --nodes=2 --gpus=8
    keras-vit launch vit_s16_i1k --target=kubernetes --workdir=/shared/s16 --gpus=8 --container_image=registry/vit:1
    keras-vit launch vit_i21k --target=jobset --workdir=/shared/i21k --accelerator=v5litepod-256 --slices=2
    keras-vit launch vit_i21k --target=tpu-vm --workdir=/shared/i21k --accelerator=v5litepod-16 --spot

The first argument is a recipe, as for --config, or a data set. Flags of `keras-vit train` are passed on. Flags that are
not listed here follow two dashes: `-- --track=wandb`. Read the file and adapt it to your cluster; nothing is
submitted without --submit. --target=local writes no file and trains in several processes on this machine.

After a preemption, the run is started again and resumes from its run directory, which must be on storage that all
hosts share. For Kubernetes and TPU VMs, the run directory may be a URL in a bucket, such as
gs://my-bucket/runs/s16. Both TensorFlow and JAX train on several hosts; TPUs need JAX.
"""

import importlib.util
import itertools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from keras_vit import cli
from keras_vit.cli import common_flags

TARGETS = {  # additional flags of each target
    "local": ("processes",),
    "slurm": ("nodes", "gpus", "tasks_per_node"),
    "kubernetes": ("nodes", "gpus", "container_image"),
    "jobset": ("accelerator", "slices", "chips_per_vm", "spot", "container_image"),
    "tpu-vm": ("accelerator", "spot"),
}
FILES = ("output", "overwrite", "submit")
ENDINGS = {"slurm": ".sbatch", "tpu-vm": ".sh"}
PASSED_ON = (
    *("data", "model", "weights", "image_size", "adapt", "time", "epochs", "steps", "batch_size", "learning_rate"),
    *("seed", "distribute", "tpu", "virtual_devices"),
)
SHARED = "/shared"  # default mount point of the shared storage

common_flags.define_recipe_flags()
common_flags.define_distribution_flags()
common_flags.define_written_flag(
    "workdir", f"Run directory, or its URL in a bucket; by default runs/NAME, in {SHARED} on other machines."
)
flags.DEFINE_enum("target", None, list(TARGETS), "Where to train.")
flags.DEFINE_enum(
    "backend", None, ["tensorflow", "jax"], "Keras backend; default: KERAS_BACKEND, or JAX on GPUs and TPUs."
)
flags.DEFINE_integer(
    "restarts",
    20,
    "Maximum number of restarts. A run also ends after three restarts in a row without a newer checkpoint.",
    0,
)
flags.DEFINE_integer("processes", 2, "local: number of processes.", 1)
flags.DEFINE_integer("nodes", 1, "slurm, kubernetes: number of machines.", 1)
flags.DEFINE_integer("gpus", 1, "slurm, kubernetes: GPUs per machine; 0 trains on CPUs.", 0)
flags.DEFINE_integer("tasks_per_node", 1, "slurm: 1 process per machine, or as many as a machine has GPUs.", 1)
flags.DEFINE_string(
    "container_image", "keras-vit:1", "kubernetes, jobset: container image, built from deploy/train/Dockerfile."
)
flags.DEFINE_string("accelerator", None, "jobset, tpu-vm: the type of the TPU slice, such as v5litepod-16 or v4-32.")
flags.DEFINE_integer("slices", 1, "jobset: number of slices.", 1)
flags.DEFINE_integer("chips_per_vm", None, "jobset: chips per host, 4 or 8, for a slice of 8 chips.")
flags.DEFINE_bool("spot", False, "jobset, tpu-vm: use spot TPUs, which cost less and may be preempted.")
common_flags.define_written_flag("output", "File to write; by default NAME.sbatch, NAME.yaml or NAME.sh.", schemes=())
flags.DEFINE_bool("overwrite", False, "Replace an existing file with other content.")
flags.DEFINE_bool("submit", False, "Also submit the file, with sbatch or kubectl, or run it.")

with cli.imports(__name__):
    import keras
    from absl import logging

    from keras_vit.training import distribute
    from keras_vit.util import file_io, source_specs, storage

    from .launching import files, tpus


def main(argv: Sequence[str]) -> int | None:
    options = flags.FLAGS
    target, rest = options.target, read_arguments(argv[1:])
    check_flags(target)
    on_tpus = "accelerator" in TARGETS[target]
    if on_tpus and not options.accelerator:
        raise ValueError("--accelerator is missing: the type of the TPU slice, such as v5litepod-16 or v4-32.")
    tpu = tpus.parse(options.accelerator, options.chips_per_vm) if on_tpus else None
    backend = options.backend or default_backend(target, on_tpus)
    if tpu and backend != "jax":
        raise ValueError(
            f"--target={target} needs JAX, which trains on all hosts of a slice. Received: --backend={backend}."
        )
    if options.gpus and options.tasks_per_node not in (1, options.gpus):
        raise ValueError(
            f"--tasks_per_node must be 1, for one process per machine, or --gpus={options.gpus}, for one process per "
            f"GPU. Received: --tasks_per_node={options.tasks_per_node}."
        )
    each = max(1, options.virtual_devices) if backend == "jax" else 1  # TensorFlow uses one CPU device per worker
    devices = options.nodes * (options.gpus or options.tasks_per_node * each)
    if tpu or target == "local":
        devices = tpu.chips * options.slices if tpu else options.processes * each
    check_batch_size(target, devices)
    workdir = run_directory(target)
    arguments, recipe_file = train_arguments(target, workdir)
    arguments += [*(["--multi_host"] if tpu else []), *rest]
    if target == "local":
        from .launching import local

        return local.run(arguments, options.processes, backend, os.path.join(workdir, "logs"), options.restarts)

    output = options.output or files.resource_name(workdir) + ENDINGS.get(target, ".yaml")
    names = ("container_image", "nodes", "gpus", "tasks_per_node", "slices", "spot")
    machines: dict[str, Any] = {name: options[name].value for name in names}
    job = files.Job(target, arguments, workdir, backend, options.restarts, output, recipe_file, tpu, **machines)
    submit = {"slurm": ["sbatch", output], "tpu-vm": ["bash", output, "run"]}.get(target)
    submit = submit or ["kubectl", "apply", "-f", output]
    if options.submit and not shutil.which(submit[0]):
        raise ValueError(f"--submit needs the program {submit[0]!r}, which is not on this machine.")
    write(output, job.render())
    advice = "" if options.submit else "Read it, change the lines marked CHANGE, then: "
    sys.stdout.write(f"{output} is written. {advice}{shlex.join(submit)}\n")
    sys.stdout.flush()
    return subprocess.run(submit, check=False).returncode if options.submit else 0


def default_backend(target: str, on_tpus: bool) -> str:
    """Return JAX for TPUs, and for GPUs unless the environment variable KERAS_BACKEND is set.

    On GPUs, JAX uses cuDNN's attention and compiles the whole step with XLA for all GPUs, unlike TensorFlow.
    """
    on_gpus = "gpus" in TARGETS[target] and flags.FLAGS.gpus > 0
    if not on_tpus and ("KERAS_BACKEND" in os.environ or not on_gpus):
        return keras.backend.backend()
    if target == "slurm" and not importlib.util.find_spec("jax"):  # its nodes have the environment of this program
        raise ValueError(
            "Training on GPUs uses JAX, which is not installed: pip install 'keras-vision-transformers[jax-cuda12]', "
            "or pass --backend=tensorflow, which is slower on GPUs."
        )
    return "jax"


def write(path: str, text: str) -> None:
    """Write a file. Replacing an existing file with different content, such as a user's changes, needs --overwrite."""
    if os.path.exists(path) and not flags.FLAGS.overwrite:
        with open(path, encoding="utf-8", errors="replace") as file:
            if file.read() != text:
                raise FileExistsError(
                    f"{path!r} already exists with different content. Pass --overwrite to replace it, or --output=FILE "
                    "to write another file."
                )
    file_io.write_text(path, text)


def read_arguments(arguments: Sequence[str]) -> Sequence[str]:
    """Set --config or --data to the first argument, and return the arguments after two dashes."""
    options = flags.FLAGS
    given = list(itertools.takewhile(lambda argument: not argument.startswith("-"), arguments))
    if given:
        name, colon, _ = given[0].partition(":")
        flag = "data" if colon and name in source_specs.KINDS else "config"
        if given[1:] or options[flag].value:
            received = ", ".join(map(repr, filter(None, [options[flag].value, *given])))
            raise ValueError(f"Expected one recipe or data set. Received: {received}.")
        setattr(options, flag, given[0])
    return arguments[len(given) :]


def check_flags(target: str | None) -> None:
    """Raise a ValueError if `--target` is missing, or if a flag belongs to another value of `--target`."""
    if not target:
        raise ValueError(f"--target is missing: where to train, one of {', '.join(TARGETS)}.")
    options = flags.FLAGS
    own = (*TARGETS[target], *(FILES if target != "local" else ()))
    others = {name for names in (*TARGETS.values(), FILES) for name in names} - set(own)
    wrong = [f"--{name}" for name in sorted(others) if options[name].present]
    if wrong:
        known = ", ".join(f"--{name}" for name in own)
        raise ValueError(f"--target={target} takes {known}. Received: {', '.join(wrong)}.")


def check_batch_size(target: str, devices: int) -> None:
    """Raise an error if the recipe does not exist, or if the devices cannot share its batch evenly."""
    try:
        recipe = cli.recipe_from_flags(count=lambda recipe: 1)  # the number of steps is not checked
    except OSError as error:
        if target in ("local", "slurm"):
            raise
        logging.warning("The recipe is not checked, because its data are not on this machine: %s", error)
        return
    distribute.check_batch_size("data.batch_size", recipe.data.batch_size, devices, recipe.optim.accumulation_steps)


def run_directory(target: str) -> str:
    """Return the path of the run directory on the hosts."""
    here = target in ("local", "slurm")
    given = flags.FLAGS.workdir or os.path.join("" if here else SHARED, cli.default_workdir())
    if not here and storage.is_bucket_url(given) and given.rstrip("/").count("/") > 2:
        return given.rstrip("/")
    workdir = os.path.abspath(given) if here else os.path.normpath(given)
    if not os.path.isabs(workdir) or workdir.count("/") < 2 or file_io.is_remote(given):
        buckets = ". A bucket must be mounted" if here else ", or a URL such as gs://my-bucket/runs/s16"
        raise ValueError(
            f"--workdir for --target={target} must be the path of a directory on storage that all hosts mount, such as "
            f"{SHARED}/runs/s16{buckets}. Received: --workdir={given}."
        )
    return workdir


def train_arguments(target: str, workdir: str) -> tuple[list[str], str | None]:
    """Return the arguments of `keras-vit train`, and the user's recipe file or None."""
    options = flags.FLAGS
    arguments, file = [], None
    if options.config:
        name, colon, argument = options.config.partition(":")
        file = os.path.abspath(name) if os.path.isfile(name) else None
        path = file and (files.RECIPES[target] + files.recipe_name(file) if target in files.RECIPES else file)
        arguments.append(f"--config={path or name}{colon}{argument}")
    arguments.append(f"--workdir={workdir}")
    changed = [name for name in PASSED_ON if options[name].value != options[name].default]
    arguments += [f"--{name}={options[name].value}" for name in changed]
    arguments += [f"--config.{override}" for override in options.override]
    return arguments, file


if __name__ == "__main__":
    cli.run(main)
