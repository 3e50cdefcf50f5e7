"""Training in several processes on this machine. If a process dies, all processes restart from the last checkpoint."""

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from absl import logging

from keras_vit.cli import exit_codes
from keras_vit.runs import restarts as counted
from keras_vit.runs.errors import NoProgress
from keras_vit.util import file_io, signals
from keras_vit.util.progress import duration

from ..experiments.processes import last_line

# Seconds within which the other workers must end: after a worker has died, and after exit code 75, when they may save.
PATIENCE, SAVING = 10.0, 60.0
_LOOK = 0.2  # seconds between two checks of the workers
# Exit codes after which a restart helps: of a lost worker, SIGTERM and Ctrl-C. Death by a signal counts as well.
_RESTARTABLE = (exit_codes.LOST_WORKER, 128 + signal.SIGTERM, 128 + signal.SIGINT)


def run(arguments: Sequence[str], processes: int, backend: str, logs: str, restarts: int = 20) -> int:
    """Train in several processes on this machine.

    Worker 0 is the chief. The terminal shows its output, and the warnings and errors of the other workers. If a worker
    dies or stops with exit code 75, the other workers end as well. All workers then start again and resume from the
    last checkpoint. SIGTERM or Ctrl-C makes all workers save and end. A second signal ends all processes at once.

    Args:
        arguments: Arguments of `keras-vit train`.
        processes: Number of workers, which share the NVIDIA GPUs of the machine.
        backend: Keras backend, `"tensorflow"` or `"jax"`.
        logs: Directory of the logs `worker-0.log`, `worker-1.log` and so on. Each start appends to them.
        restarts: Maximum number of restarts. `keras_vit.runs.restarts` limits restarts without a newer checkpoint.

    Returns:
        Exit code: 0 after the last step, 75 after a signal, otherwise the exit code of the failed worker.

    Raises:
        ValueError: If the GPUs cannot be divided among the workers.
    """
    file_io.make_directory(logs)
    paths = [os.path.join(logs, f"worker-{index}.log") for index in range(processes)]
    began, lost = time.monotonic(), list[str]()
    with signals.StopRequest() as stop:
        stop.defer("the step of all workers")
        while True:
            number = {counted.VARIABLE: str(len(lost))}
            workers = Workers(arguments, [own | number for own in environments(processes, backend)], paths)
            code, reason = workers.wait(stop)
            if stop and code == exit_codes.LOST_WORKER:
                reason = f"stopped by {stop.signal}; start the same command again to resume"
            elif code == exit_codes.LOST_WORKER:
                if len(lost) < restarts:
                    lost.append(reason)
                    logging.warning("All workers start again from the last checkpoint: %s.", reason)
                    continue
                code, reason = exit_codes.FAILED, f"the run did not end after {restarts} restarts: {reason}"
            break
    took = duration(time.monotonic() - began)
    starts = f"started {len(lost) + 1} times ({'; '.join(lost)}), " if lost else ""
    level = logging.INFO if code in (0, exit_codes.LOST_WORKER) else logging.ERROR
    logging.log(level, "%d workers, %s%s: %s (%s/worker-*.log)", processes, starts, took, reason, logs)
    return code


def environments(processes: int, backend: str) -> list[dict[str, str]]:
    """Return the environment variables of each worker: its position in a cluster on free ports, and its GPUs."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(processes)]
    cluster = {"worker": [f"localhost:{one.getsockname()[1]}" for one in sockets]}
    for one in sockets:
        one.close()
    gpus = _gpus()
    if len(gpus) % processes:
        raise ValueError(
            f"{len(gpus)} GPUs must divide evenly among the workers. Received: {processes} processes. "
            "CUDA_VISIBLE_DEVICES=0,1 restricts the GPUs, CUDA_VISIBLE_DEVICES=-1 trains on the CPU."
        )
    share, variables = len(gpus) // processes, list[dict[str, str]]()
    for index in range(processes):
        tf_config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        own = {"CUDA_VISIBLE_DEVICES": ",".join(gpus[index * share : (index + 1) * share])} if gpus else {}
        variables.append({"KERAS_BACKEND": backend, "TF_CONFIG": tf_config, "PYTHONUNBUFFERED": "1", **own})
    return variables


def _gpus() -> list[str]:
    """Return the numbers of the NVIDIA GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return [] if done.returncode else done.stdout.split()  # without GPUs, nvidia-smi fails and prints a message


def start_worker(arguments: Sequence[str], variables: Mapping[str, str], log: str) -> subprocess.Popen:
    """Start `keras-vit train` with additional environment variables, in a new session that Ctrl-C does not reach."""
    with open(log, "ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "keras_vit", "train", *arguments],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class Workers:
    """All workers of a training run, from their start to the end of the last worker."""

    def __init__(self, arguments: Sequence[str], variables: Sequence[dict[str, str]], logs: Sequence[str]):
        self.logs = logs
        self.ended: dict[int, int] = {}  # exit code by worker, in the order in which the workers ended
        self.hung: list[int] = []  # workers that had to be killed
        self.processes: list[subprocess.Popen] = []
        self._files = [open(path, "a+", encoding="utf-8", errors="replace") for path in logs]  # noqa: SIM115
        for path, own in zip(logs, variables, strict=True):
            self.processes.append(start_worker(arguments, own, path))

    def wait(self, stop: signals.StopRequest) -> tuple[int, str]:
        """Wait until all workers have ended.

        Returns the exit code of the run, which is 75 if a restart helps, and the reason in words.
        """
        deadline, asked = math.inf, False
        try:
            while len(self.ended) < len(self.processes):
                time.sleep(_LOOK)
                if stop and not asked:
                    self._signal(signal.SIGTERM)
                    asked = True
                if (code := self._look()) and deadline == math.inf:
                    deadline = time.monotonic() + (SAVING if code == exit_codes.LOST_WORKER else PATIENCE)
                if time.monotonic() > deadline and not self.hung and (running := self._running()):
                    self.hung = running
                    logging.warning(
                        "Worker %s is still running although the others have exited; killing it.", _listed(self.hung)
                    )
                    self._signal(signal.SIGKILL)
        finally:  # also after a second signal
            self._signal(signal.SIGKILL)
            for process in self.processes:
                process.wait()
            self._show()
            for file in self._files:
                file.close()
        return self._outcome()

    def _outcome(self) -> tuple[int, str]:
        failed = {index: code for index, code in self.ended.items() if code}
        if not failed:
            return 0, "training is complete"
        # After the end of a worker, JAX aborts the other workers (SIGABRT).
        died = [index for index, code in failed.items() if code < 0 and code != -signal.SIGABRT]
        died = [index for index in died if index not in self.hung]
        final = [index for index, code in failed.items() if code > 0 and code not in _RESTARTABLE]
        certain = [index for index in final if failed[index] == NoProgress.exit_code]
        if certain or (final and not died):  # the death of a worker may cause unknown errors in the others
            first = (certain or final)[0]
            return failed[first], self._end_of(first)
        if self.hung and not died:
            return exit_codes.LOST_WORKER, f"worker {_listed(self.hung)} hung"
        return exit_codes.LOST_WORKER, self._end_of((died or list(failed))[0])

    def _end_of(self, index: int) -> str:
        code = self.ended[index]
        if code < 0:
            return f"worker {index} died by {signal.Signals(-code).name}"
        return f"worker {index} ended with exit code {code}: {last_line(self.logs[index])}"

    def _look(self) -> int:
        """Show new log lines, record ended workers, and return the exit code of the first failed worker, or 0."""
        for index in self._running():
            if (code := self.processes[index].poll()) is not None:
                self.ended[index] = code
        self._show()
        return next(filter(None, self.ended.values()), 0)

    def _show(self) -> None:
        """Copy new lines of the chief, and new warnings and errors of the other workers, to the terminal."""
        for index, file in enumerate(self._files):
            for line in file:
                if index == 0:
                    sys.stdout.write(line)
                elif line.startswith(("warning: ", "error: ")):
                    sys.stdout.write(f"worker {index}: {line}")
        sys.stdout.flush()

    def _running(self) -> list[int]:
        return [index for index in range(len(self.processes)) if index not in self.ended]

    def _signal(self, number: int) -> None:
        for index in self._running():
            self.processes[index].send_signal(number)


def _listed(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices))
