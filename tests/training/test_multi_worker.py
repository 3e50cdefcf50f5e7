"""Two real processes that train together under MultiWorkerMirroredStrategy, also when one of them is killed."""

import json
import re
import signal
import socket
import time

import numpy as np
import pytest

from tests.training import worlds

pytestmark = pytest.mark.slow

# Dropout draws belong to a replica, so that two workers draw others than one device: off where they are compared.
QUIET = {"model__arguments__dropout_rate": 0.0, "model__arguments__drop_path_rate": 0.0}


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
        worlds.start(workdir, "--distribute=multi_worker", environment={"TF_CONFIG": json.dumps(config)}, **fields)
        for config in configs
    ]


def finish(workers):
    outputs = [worker.communicate(timeout=180)[0] for worker in workers]
    for worker, output in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, output[-4000:]
    return outputs


def kill(workers):
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
        worker.communicate()


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    directory = tmp_path_factory.mktemp("together")
    finish(start_workers(directory, **QUIET))
    return directory


def test_two_workers_give_the_result_of_one_device(together, tmp_path):
    worlds.train(tmp_path, **QUIET)
    one, two = worlds.final_weights(tmp_path), worlds.final_weights(together)
    assert set(one) == set(two)
    for path, value in one.items():
        if not path.endswith("key/bias"):  # see test_trajectories: rounding, amplified by Adam
            np.testing.assert_allclose(two[path], value, rtol=1e-3, atol=1e-4, err_msg=path)
    for first, second in zip(worlds.metrics(tmp_path), worlds.metrics(together), strict=True):
        for name in {"loss", "eval_loss", "learning_rate", "step", "examples"} & set(first):
            assert first[name] == pytest.approx(second[name], rel=1e-4)


def test_a_killed_worker_costs_nothing(together, tmp_path):
    """SIGKILL one worker in the middle of the run, start both again: the same final weights, bit for bit."""
    workers = start_workers(tmp_path, **QUIET, steps_per_loop=1)
    deadline = time.monotonic() + 600
    while not list(tmp_path.glob("checkpoints/ckpt-3.json")) and time.monotonic() < deadline:
        time.sleep(0.002)
    workers[1].send_signal(signal.SIGKILL)
    time.sleep(1)
    kill(workers)
    assert not (tmp_path / "model.keras").exists(), "the run was finished before the kill"
    outputs = finish(start_workers(tmp_path, **QUIET))
    went_on = [re.findall("Resuming from the checkpoint of step ([0-9]+)", output) for output in outputs]
    assert went_on[0] == went_on[1] != []
    assert worlds.metrics(together) == worlds.metrics(tmp_path)
    worlds.assert_same_bits(worlds.final_weights(together), worlds.final_weights(tmp_path))
