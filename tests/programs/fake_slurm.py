"""Slurm's programs as far as a job script needs them: the tasks of all nodes run on this machine."""

import os
import pathlib
import re
import signal
import subprocess
import sys

JOB = os.environ.get("SLURM_JOB_ID", str(os.getpid()))  # it decides on the ports of a job


def install(directory):
    """Write `srun` and `scontrol` into a directory for PATH."""
    for name in ("srun", "scontrol"):
        path = directory / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -S {__file__} {name} "$@"\n')
        path.chmod(0o755)


def start(script, nodes, restarts=0, **environment):
    """Start a job script as `sbatch` does, on the first node."""
    tasks = re.search(r"^#SBATCH --ntasks-per-node=(\d+)$", pathlib.Path(script).read_text(), re.MULTILINE)[1]
    environment = {**os.environ, **environment, "SLURM_JOB_ID": JOB, "SLURM_JOB_NODELIST": ",".join(nodes)}
    environment |= {"SLURM_NTASKS_PER_NODE": tasks} | ({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {})
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(["bash", script], env=environment, cwd=pathlib.Path(script).parent, **pipes)


def sbatch(script, nodes, **environment):
    """Run a job script, again as long as it puts itself into the queue; return its last exit code and its output."""
    output, restarts = "", 0
    while True:
        job = start(script, nodes, restarts, **environment)
        output += job.communicate(timeout=300)[0]
        if output.count(f"requeued {JOB}") == restarts:
            return job.returncode, output
        restarts += 1


def scontrol(verb, what, *rest):
    """`show hostnames LIST` or `requeue JOB`."""
    print(rest[0].replace(",", "\n") if (verb, what) == ("show", "hostnames") else f"requeued {what}")


def srun(*arguments):
    """Run a command once in each task. SIGTERM goes to all tasks, as that of --signal does."""
    options = dict(argument.split("=", 1) for argument in arguments if argument.startswith("--"))
    command = [argument for argument in arguments if not argument.startswith("--")]
    nodes, each = os.environ["SLURM_JOB_NODELIST"].split(","), int(os.environ["SLURM_NTASKS_PER_NODE"])
    step = {"SLURM_STEP_NODELIST": ",".join(nodes), "SLURM_STEP_NUM_NODES": str(len(nodes))}
    step |= {"SLURM_NTASKS": str(len(nodes) * each)}
    tasks = []
    signal.signal(signal.SIGTERM, lambda *_: [task.terminate() for task in tasks])
    for rank in range(len(nodes) * each):
        own = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank % each, "SLURM_NODEID": rank // each}
        own = {**step, **{name: str(value) for name, value in own.items()}}
        name = options["--output"].replace("%%", "\0").replace("%j", JOB).replace("%t", str(rank))
        with open(name.replace("\0", "%"), "a") as log:
            tasks.append(subprocess.Popen(command, env=os.environ | own, stdout=log, stderr=log))
    return max(code if code >= 0 else 128 - code for code in [task.wait() for task in tasks])


if __name__ == "__main__":
    sys.exit({"srun": srun, "scontrol": scontrol}[sys.argv[1]](*sys.argv[2:]))
