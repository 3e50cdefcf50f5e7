"""The supervisor of several workers on this machine, with workers that follow a script."""

import json
import os
import signal
import threading
import time

import pytest

from keras_vit.runs import restarts as restarts_of_runs
from keras_vit.util import signals
from train.launching import local


class Worker:
    """A worker that logs some lines and exits with a code after some polls; with None it runs until a signal."""

    def __init__(self, lines, code, log, deaf=False, looks=0):
        self.code, self.deaf, self.looks, self.signals = code, deaf, looks, []
        with open(log, "a") as file:
            file.writelines(f"{line}\n" for line in lines)

    @property
    def returncode(self):
        return self.code

    def poll(self):
        self.looks -= 1
        return None if self.looks >= 0 else self.code

    def wait(self):
        assert self.code is not None

    def send_signal(self, number):
        self.signals.append(number)
        self.looks = 0
        if number == signal.SIGKILL or not self.deaf:
            self.code = -number if number == signal.SIGKILL else 75


@pytest.fixture
def supervise(monkeypatch, tmp_path, capsys):
    """Run the supervisor on scripts, one dictionary per start; return its exit code, output and started workers."""
    monkeypatch.setattr(local, "PATIENCE", 0.02)
    monkeypatch.setattr(local, "SAVING", 0.05)
    monkeypatch.setattr(local, "_LOOK", 0.01)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")

    def supervise(*scripts, processes=2, restarts=1):
        started = []

        def start(arguments, variables, log):
            assert arguments == ["--config=digits"]
            cluster, task = (json.loads(variables["TF_CONFIG"])[name] for name in ("cluster", "task"))
            index = task["index"]
            if index == 0:
                started.append(cluster["worker"])
            assert cluster["worker"] == started[-1] and len(set(started[-1])) == processes
            assert variables["KERAS_BACKEND"] == "jax" and task["type"] == "worker"
            assert variables[restarts_of_runs.VARIABLE] == str(len(started) - 1)
            assert log == str(tmp_path / f"worker-{index}.log")
            return Worker(log=log, **scripts[len(started) - 1].get(index, {"lines": (), "code": 0}))

        monkeypatch.setattr(local, "start_worker", start)
        code = local.run(["--config=digits"], processes, "jax", str(tmp_path), restarts)
        return code, capsys.readouterr().out, len(started)

    return supervise


def worker(code, *lines, **options):
    return {"code": code, "lines": lines, **options}


def test_the_terminal_shows_the_chief_and_the_warnings_of_others(supervise):
    script = {0: worker(0, "step 1", "step 2"), 1: worker(0, "step 1", "warning: slow", "error: odd")}
    code, shown, starts = supervise(script)
    assert (code, starts) == (0, 1)
    assert sorted(shown.splitlines()) == ["step 1", "step 2", "worker 1: error: odd", "worker 1: warning: slow"]


@pytest.mark.parametrize(
    "script",
    [
        {1: worker(-9)},
        {0: worker(75), 1: worker(-9)},
        {0: worker(2), 1: worker(-9)},  # an error after the death of another worker may be unknown
        {0: worker(-6), 1: worker(-6)},  # so JAX ends workers after another one
        {0: worker(143), 1: worker(75)},
    ],
)
def test_all_workers_restart_if_one_is_lost(supervise, script, caplog):
    assert supervise(script, {})[::2] == (0, 2)
    assert "All workers start again" in caplog.text


@pytest.mark.parametrize("final", [1, 2, 66, 70, 74])
def test_error_that_a_restart_does_not_fix_ends_all_workers(supervise, final):
    others = {0: worker(None, deaf=True), 1: worker(final), 2: worker(75), 3: worker(-6)}
    assert supervise(others, processes=4)[::2] == (final, 1)


def test_run_without_progress_ends_even_if_a_worker_died(supervise):
    assert supervise({0: worker(70), 1: worker(-9)})[::2] == (70, 1)


def test_a_worker_that_hangs_is_named_and_killed(supervise, caplog):
    script = {0: worker(75, "error: another worker cannot be reached"), 1: worker(None, deaf=True)}
    assert supervise(script, {})[::2] == (0, 2)
    assert "Worker 1 is still running" in caplog.text and "worker 1 hung" in caplog.text


@pytest.mark.parametrize(("code", "patience"), [(75, "SAVING"), (70, "PATIENCE")])
def test_workers_that_may_save_have_their_own_time(supervise, code, patience, monkeypatch, caplog):
    """A worker that ends a little later than the others is killed only where no time is left."""
    for seconds in (60, 0):
        for name in ("SAVING", "PATIENCE"):
            monkeypatch.setattr(local, name, seconds if name == patience else 60 - seconds)
        caplog.clear()
        supervise({0: worker(code), 1: worker(75, looks=5)}, {})
        assert ("Worker 1 is still running" in caplog.text) == (not seconds)


def test_restarts_are_limited(supervise, caplog):
    died = {1: worker(-9), 2: worker(-11)}  # the first is named
    assert supervise(died, died, {}, processes=3)[::2] == (1, 2)
    assert "started 2 times (worker 1 died by SIGKILL), 0:00: the run did not end after 1 restarts" in caplog.text
    assert caplog.records[-1].levelname == "ERROR"


def test_sigterm_makes_all_workers_save_and_exit(supervise, tmp_path):
    ask_after(tmp_path, signal.SIGTERM)
    script = {0: worker(None), 1: worker(None)}
    assert supervise(script)[::2] == (75, 1)


def test_second_signal_ends_all_workers(supervise, tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "AGAIN", 0.0)
    ask_after(tmp_path, signal.SIGTERM, signal.SIGTERM)
    with pytest.raises(signals.Stopped):
        supervise({0: worker(None, deaf=True), 1: worker(None, deaf=True)})


def ask_after(directory, *numbers):
    """Send signals to this process once the workers run."""

    def ask():
        while not (directory / "worker-1.log").exists():
            time.sleep(0.01)
        for number in numbers:
            time.sleep(0.1)
            os.kill(os.getpid(), number)

    threading.Thread(target=ask).start()


def test_gpus_are_divided_among_the_workers(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,3,7")
    given = [variables["CUDA_VISIBLE_DEVICES"] for variables in local.environments(2, "tensorflow")]
    assert given == ["0,1", "3,7"]
    with pytest.raises(ValueError, match="4 GPUs must divide evenly.*Received: 3 processes"):
        local.environments(3, "tensorflow")


def test_gpus_that_the_driver_lists_are_divided(tmp_path, monkeypatch):
    """Without a driver, or where the driver fails and prints a message, there are none."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert local._gpus() == []
    for code, gpus in ((0, ["0", "1"]), (9, [])):
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho 0\necho 1\nexit {code}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        assert local._gpus() == gpus
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local._gpus() == []
