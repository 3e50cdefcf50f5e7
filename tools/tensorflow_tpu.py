"""Check the package with the TPU build of TensorFlow, on a machine without a TPU.

    python -m tools.tensorflow_tpu --environment=.venv-tpu

The program creates a virtual environment with the extra [tpu], unless it exists, and checks in this environment that

1. the package imports with tensorflow-tpu and a compatible libtpu,
2. `train.main --distribute=one_device` trains some steps on the digits and resumes, without XLA for the host, which
   this build does not include,
3. `jit="on"`, which needs XLA for the host, fails with an error message,
4. `train.main --distribute=tpu` fails within seconds, with the exit code of wrong usage and a message with the remedy.

It prints one line per check. The exit code is 0 if all checks pass.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECONDS = 60  # until the message that no TPU was found; most of this time is the import of TensorFlow
# Outside of Google Cloud, libtpu would query the metadata server for minutes.
ENVIRONMENT = {**os.environ, "TPU_SKIP_MDS_QUERY": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
SMALL = ("--config=train/configs/digits.py", "--config.eval_every=0", "--config.steps_per_loop=4")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", default=".venv-tpu", help="folder of the virtual environment")
    python = environment(pathlib.Path(parser.parse_args().environment).resolve())
    with tempfile.TemporaryDirectory() as folder:
        checks = [imports, lambda python: trains(python, folder), lambda python: refuses_xla(python, folder), no_tpu]
        return 0 if all([check(python) for check in checks]) else 1


def environment(folder: pathlib.Path) -> str:
    """Create the environment if it does not exist, and return the path of its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--editable", f"{ROOT}[tpu]"], check=True)
    return str(python)


def imports(python: str) -> bool:
    code = (
        "import importlib.metadata as m, keras_vit, tensorflow as tf\n"
        "from keras_vit.training import distribute\n"
        "assert distribute.has_tpu_build()\n"
        "assert keras_vit.ViT_Ti16(image_size=32, classes=3)(tf.zeros([1, 32, 32, 3])).shape == (1, 3)\n"
        "print(', '.join(f'{name} {m.version(name)}' for name in ('tensorflow-tpu', 'libtpu', 'keras')))\n"
    )
    result, seconds = run(python, "-c", code)
    return report("the package imports and computes", result.returncode == 0, seconds, result.stdout or result.stderr)


def trains(python: str, folder: str) -> bool:
    """Train, resume from the checkpoint, and check that the output does not mention XLA for the host."""
    outputs, codes, seconds = "", [], 0.0
    for steps in (8, 12):
        result, spent = run(
            python, "-m", "train.main", *SMALL, f"--workdir={folder}/run", "--distribute=one_device",
            f"--config.total_steps={steps}", "--config.checkpoint_every=8", "--config.log_every=4",
        )  # fmt: skip
        outputs, seconds = outputs + result.stdout + result.stderr, seconds + spent
        codes.append(result.returncode)
    good = codes == [0, 0] and "Resuming from the checkpoint of step 8" in outputs
    host_xla = [line for line in outputs.splitlines() if "platform Host" in line or "Compiled cluster" in line]
    report("trains the digits and resumes", good, seconds, "" if good else outputs)
    report("asks for no XLA on the host", not host_xla, 0.0, "".join(host_xla))
    return good and not host_xla


def refuses_xla(python: str, folder: str) -> bool:
    result, seconds = run(
        python, "-m", "train.main", *SMALL, f"--workdir={folder}/xla", "--distribute=one_device", "--config.jit=on"
    )
    good = result.returncode == 2 and 'Use jit="auto"' in result.stderr
    return report("refuses XLA on the host", good, seconds, last_line(result.stderr))


def no_tpu(python: str) -> bool:
    result, seconds = run(python, "-m", "train.main", *SMALL, "--workdir=/nonexistent", "--distribute=tpu")
    named = "found no TPU" in result.stderr and "export TPU_NAME=local PJRT_DEVICE=TPU" in result.stderr
    good = result.returncode == 2 and named and seconds < SECONDS
    return report("--distribute=tpu without a TPU ends with the fix", good, seconds, last_line(result.stderr))


def run(python: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    started = time.monotonic()
    result = subprocess.run(
        [python, *arguments], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=1_200
    )
    return result, time.monotonic() - started


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if "TPU" in line or "XLA" in line]
    return lines[-1] if lines else text


def report(name: str, good: bool, seconds: float, detail: str) -> bool:
    sys.stdout.write(f"{'ok  ' if good else 'FAIL'} {name} ({seconds:.0f} s)\n")
    for line in detail.strip().splitlines():
        sys.stdout.write(f"         {line}\n")
    return good


if __name__ == "__main__":
    sys.exit(main())
