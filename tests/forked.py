"""Programs in processes that are forked from one that has imported TensorFlow, to save the import time."""

import atexit
import multiprocessing
import os
import pathlib
import runpy
import subprocess
import sys
import threading
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Keras is imported with TensorFlow, and its backend is chosen then.
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tensorflow", "keras"])


def start(target, *arguments):
    """Start a process that calls a function of a module."""
    process = CONTEXT.Process(target=target, args=arguments)
    with mock.patch.dict(os.environ, ENVIRONMENT):  # of the process that is forked, which the first call starts
        process.start()
    return process


def run(module, *arguments):
    """Run a module of the checkout, or "-c" and a text as Python does, to its end; return exit code and output."""
    program = Program(ROOT, module, arguments, os.environ)
    output, _ = program.communicate()
    return program.returncode, output


class Program:
    """`python -m MODULE ARGUMENTS` with the methods of `subprocess.Popen` that tests need; its output is one text."""

    def __init__(self, directory, module, arguments, environment):
        reading, writing = CONTEXT.Pipe(duplex=False)
        arguments = [str(argument) for argument in arguments]
        self.process = start(_run, str(directory), module, arguments, dict(environment), writing)
        writing.close()
        self.stdout = os.fdopen(os.dup(reading.fileno()), encoding="utf-8", errors="replace")
        reading.close()

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        return self.process.exitcode

    def wait(self, timeout):
        self.process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.process.name, timeout)
        return self.returncode

    def communicate(self, timeout=300):
        """Return the rest of the output and nothing, after the end of the process, which is killed when it is due."""
        alarm = threading.Timer(timeout, self.kill)
        alarm.start()
        with self.stdout:
            output = self.stdout.read()
        self.process.join()
        alarm.cancel()
        return output, None

    def send_signal(self, number):
        if self.returncode is None:
            os.kill(self.process.pid, number)

    def kill(self):
        self.process.kill()


def _run(directory, module, arguments, environment, output):
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    output.close()
    # Python's own streams were opened on the files of the process that forks, which may have been seekable.
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    if module == "-c":
        code, sys.argv = arguments[0], ["-c", *arguments[1:]]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        return
    run_module(module, arguments)


def run_module(module, arguments):
    """Run a module as `python -m` does. Its exit handlers run as well: without them, JAX aborts the other processes."""
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out
