"""Two real processes that train together under MultiWorkerMirroredStrategy, also when one of them is killed."""

import json
import re
import signal
import socket
import time

import numpy as np
import pytest

from tests import selection
from tests.training import small_runs
from tools import crash, crash_workers
from train.launching import local

pytestmark = [pytest.mark.slow, pytest.mark.long]

QUIET = small_runs.QUIET
LONG = {**QUIET, "steps_per_loop": 1, "total_steps": 100_000, "eval_every": 100_000}


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("localhost", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def start_workers(workdir, **fields):
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    configs = [{"cluster": cluster, "task": {"type": "worker", "index": index}} for index in range(2)]
    return [
        small_runs.start(workdir, "--distribute=multi_worker", environment={"TF_CONFIG": json.dumps(config)}, **fields)
        for config in configs
    ]


def finish(workers):
    outputs = [worker.communicate(timeout=600)[0] for worker in workers]
    for worker, output in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, output[-4000:]
    return outputs


def wait_for(path, workers):
    deadline = time.monotonic() + 600
    while not path.exists() and time.monotonic() < deadline and all(worker.poll() is None for worker in workers):
        time.sleep(0.002)


def kill(workers):
    for worker in workers:
        if worker.poll() is None:
            worker.kill()
            worker.communicate()


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    directory = tmp_path_factory.mktemp("together")
    finish(start_workers(directory, **QUIET))
    return directory


def test_two_workers_give_the_result_of_one_device(together, tmp_path_factory):
    alone = small_runs.quiet_run(tmp_path_factory)
    one, two = small_runs.final_weights(alone), small_runs.final_weights(together)
    assert set(one) == set(two)
    for path, value in one.items():
        if not path.endswith("key/bias"):  # see test_trajectories: rounding, amplified by Adam
            np.testing.assert_allclose(two[path], value, rtol=1e-3, atol=1e-4, err_msg=path)
    small_runs.assert_same_metrics(together, alone)


def test_each_worker_has_its_log(together):
    assert sorted(path.name for path in together.glob("log*.txt")) == ["log-1.txt", "log.txt"]
    assert "2 workers" in (together / "log-1.txt").read_text()


def test_one_process_continues_the_run_of_two(together, tmp_path, tmp_path_factory):
    small_runs.rewind(together, tmp_path / "run", step=9)
    assert "Resuming from the checkpoint of step 9" in small_runs.train(tmp_path / "run", **QUIET)
    small_runs.assert_same_metrics(tmp_path / "run", small_runs.quiet_run(tmp_path_factory))


def test_run_resumes_exactly_after_a_killed_worker(together, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "start_worker", crash_workers.Forked)
    assert_kill_costs_nothing(together, tmp_path, "tensorflow", **QUIET)


def assert_kill_costs_nothing(whole, directory, backend, *flags, **fields):
    """SIGKILL one of two supervised workers in the middle of a run: the same final weights, bit for bit."""
    fields = {**small_runs.TINY, "steps_per_loop": 1, **fields}
    kill = crash_workers.Kill(worker=1, step=3, seconds=0)
    assert crash_workers.train_and_kill([kill], directory, backend, 2, *flags, **fields) == 1
    log = (directory / "logs" / "worker-0.log").read_text()
    assert "Another worker ended or cannot be reached" in log and "Traceback" not in log
    assert "Resuming from the checkpoint of step" in log
    crash.compare(whole, directory)


@pytest.mark.parametrize("signaled", selection.cases([0, 1], [1], selection.EXHAUSTIVE))
def test_sigterm_to_one_worker_stops_and_saves_all(signaled, tmp_path):
    workers = start_workers(tmp_path, **LONG)
    assert_all_stop_and_save(workers, signaled, tmp_path)


def assert_all_stop_and_save(workers, signaled, directory, name="ckpt-{}.json"):
    """SIGTERM to one of two workers: both end with code 75 at the same step, which is saved."""
    wait_for(directory / "checkpoints" / name.format(3), workers)
    workers[signaled].send_signal(signal.SIGTERM)
    try:
        outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    finally:
        kill(workers)
    assert [worker.returncode for worker in workers] == [75, 75], "".join(output[-3000:] for output in outputs)
    assert "SIGTERM received: saving after the current step" in outputs[signaled]
    found = [re.search(r"Stopped by (.+) at step (\d+) of 100000; the state is saved", output) for output in outputs]
    assert found[signaled][1] == "SIGTERM" and found[1 - signaled][1] == "another worker"
    assert found[0][2] == found[1][2]
    assert (directory / "checkpoints" / name.format(found[0][2])).exists()
