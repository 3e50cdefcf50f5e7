"""Apply one mutant at a time to a copy of the library, and report which mutants the tests detect.

    python -m tools.mutants                        # all mutants of tools/mutants.toml, about ten minutes
    python -m tools.mutants --only=optim,layers    # the mutants of some subpackages
    python -m tools.mutants --survivors            # only the mutants that the tests did not detect in the last run

A mutant is an entry of `tools/mutants.toml`: a file, the text of one line, its replacement, and the tests that should
fail. First, all of these tests run on an unchanged copy. If a test fails there, its mutants are reported as invalid.
For each mutant, the fast tests run before the slow tests. A mutant is killed if a test fails or exceeds the time
limit, and survives if all tests pass. Each mutant is tried in a forked process, so TensorFlow is imported only once.
Subprocesses that the tests start also import the changed copy. `--list` reads another file of mutants, such as the
output of `tools.generate_mutants`.
"""

import argparse
import collections
import compileall
import dataclasses
import multiprocessing
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).parents[1]
LIST = ROOT / "tools" / "mutants.toml"
SURVIVORS = ROOT / ".mutants"
MARKS = "not exhaustive and not interop and not tpu and not gpu and not real"
SECONDS = 900  # time limit per mutant, because a mutant can loop forever


@dataclasses.dataclass(frozen=True)
class Mutant:
    """Mutant that replaces `line` of `file` with `replacement`, both without indentation."""

    file: str
    line: str
    replacement: str
    tests: tuple[str, ...]
    occurrence: int = 1  # selects one of several equal lines

    @property
    def subpackage(self) -> str:
        """Package or module of the library, or folder of a program."""
        parts = pathlib.PurePath(self.file).parts
        return parts[parts[0] == "keras_vit"].removesuffix(".py")

    def __str__(self) -> str:
        return f"{self.file}: {self.line} -> {self.replacement}"

    def applied(self, source: str) -> str:
        """Return the source with the mutant.

        Raises:
            ValueError: If the file does not contain the line.
        """
        lines = source.splitlines(keepends=True)
        found = [index for index, line in enumerate(lines) if line.strip() == self.line]
        if len(found) < self.occurrence:
            raise ValueError(f"{self.file} does not have the line {self.line!r}. Update tools/mutants.toml.")
        index = found[self.occurrence - 1]
        indentation = lines[index][: len(lines[index]) - len(lines[index].lstrip())]
        lines[index] = indentation + self.replacement + "\n"
        return "".join(lines)


def load(path: pathlib.Path = LIST) -> list[Mutant]:
    """Read mutants from a TOML file."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def copy_checkout(directory: pathlib.Path) -> None:
    """Copy all files that Git tracks, and compile the library and the tests."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, directory / name)
    compileall.compile_dir(directory / "keras_vit", quiet=2)
    compileall.compile_dir(directory / "tests", quiet=2)


def try_one(mutant: Mutant, directory: pathlib.Path, parts: Sequence[str]) -> str:
    """Try a mutant in a checkout, and return "killed", "survived" or an error message.

    `directory` must be the current directory. `parts` are expressions of pytest marks. The tests of the first
    expression run first.
    """
    file = directory / mutant.file
    source, times = file.read_text(encoding="utf-8"), file.stat()
    try:
        file.write_text(mutant.applied(source), encoding="utf-8")
        found = []
        for marks in parts:
            found.append(_test(mutant.tests, marks, directory / "log.txt"))
            if found[-1] == "killed":
                return "killed"
        return "survived" if "survived" in found else found[0]
    except ValueError as error:
        return str(error)
    finally:
        file.write_text(source, encoding="utf-8")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # keep the compiled file valid


def _test(tests: tuple[str, ...], marks: str, log: pathlib.Path) -> str:
    child = os.fork()
    if child == 0:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        import pytest

        os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", marks, *tests]))
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            # Exit codes of pytest: 0 passed, 1 failed, 2 failed import, 4 unknown test, 5 no tests selected.
            return {0: "survived", 5: f"no test found by {tests}", 4: f"no such tests: {tests}"}.get(code, "killed")
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "killed"


def failing(tests: Sequence[str], marks: str, workers: int = 2) -> list[str]:
    """Return the tests that fail in an unchanged copy of the checkout, as `FILE::TEST`.

    Raises:
        RuntimeError: If pytest could not run them.
    """
    with tempfile.TemporaryDirectory() as temporary:
        copy_checkout(pathlib.Path(temporary))
        options = [
            "-q",
            "-rfE",
            "--tb=no",
            "-p",
            "no:cacheprovider",
            "-n",
            str(workers),
            "--dist=worksteal",
            "-m",
            marks,
        ]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        environment = {**os.environ, **_environment(temporary)}
        result = subprocess.run(command, cwd=temporary, env=environment, capture_output=True, text=True)
    if result.returncode not in (0, 1, 5):  # 5: no tests selected
        raise RuntimeError(f"pytest ended with {result.returncode}:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    lines = (line.split() for line in result.stdout.splitlines())
    return [words[1] for words in lines if len(words) > 1 and words[0] in ("FAILED", "ERROR")]


def fails_without(mutant: Mutant, failed: Sequence[str]) -> list[str]:
    """Return the tests of a mutant that already fail without the mutant."""
    return [name for name in failed if any(_is_within(name, test) for test in mutant.tests)]


def _is_within(name: str, test: str) -> bool:
    return name == test or name.startswith((f"{test}/", f"{test}::", f"{test}["))


def _environment(directory: str | pathlib.Path) -> dict[str, str]:
    chosen = {"PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    defaults = {"TF_NUM_INTRAOP_THREADS": "1", "KERAS_BACKEND": "tensorflow"}
    return {**chosen, **{name: os.environ.get(name, value) for name, value in defaults.items()}}


def work(
    mutants: "multiprocessing.SimpleQueue[Mutant | None]", results: multiprocessing.SimpleQueue, parts: Sequence[str]
) -> None:
    """Try mutants from a queue in a copy of the checkout."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary) / "checkout"
        directory.mkdir()
        copy_checkout(directory)
        os.chdir(directory)
        sys.path[:] = [str(directory), *(path for path in sys.path if path not in ("", str(ROOT)))]
        os.environ.update(_environment(directory))
        sys.dont_write_bytecode = True
        for module in [name for name in sys.modules if name.partition(".")[0] in ("tools", "tests")]:
            del sys.modules[module]
        import keras  # noqa: F401 (imported once for all mutants)
        import pytest  # noqa: F401
        import tensorflow as tf  # noqa: F401

        while (mutant := mutants.get()) is not None:
            started = time.monotonic()
            results.put((mutant, try_one(mutant, directory, parts), time.monotonic() - started))
    results.put(None)


def run(mutants: list[Mutant], workers: int, parts: Sequence[str]) -> Iterator[tuple[Mutant, str, float]]:
    """Yield (mutant, result, seconds) as the results arrive."""
    context = multiprocessing.get_context("spawn")
    queue, results = context.SimpleQueue(), context.SimpleQueue()
    processes = [context.Process(target=work, args=(queue, results, parts)) for _ in range(workers)]
    for process in processes:
        process.start()
    for mutant in [*mutants, *[None] * workers]:  # blocks while the pipe is full
        queue.put(mutant)
    while workers:
        result = results.get()
        if result is None:
            workers -= 1
        else:
            yield result
    for process in processes:
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", type=pathlib.Path, default=LIST, help="the file with the mutants")
    parser.add_argument("--only", default="", help="subpackages, separated by commas; all by default")
    parser.add_argument("--survivors", action="store_true", help="try only the mutants that survived the last run")
    parser.add_argument("--fast", action="store_true", help="skip the slow tests")
    parser.add_argument("--workers", type=int, default=2, help="number of processes")
    flags = parser.parse_args()
    mutants = load(flags.list)
    if flags.only:
        mutants = [mutant for mutant in mutants if mutant.subpackage in flags.only.split(",")]
    if flags.survivors:
        kept = SURVIVORS.read_text(encoding="utf-8").splitlines()
        mutants = [mutant for mutant in mutants if str(mutant) in kept]
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    survivors = []
    parts = [f"{part} and {MARKS}" for part in (("not slow",) if flags.fast else ("not slow", "slow"))]
    named = sorted({test for mutant in mutants for test in mutant.tests})
    failed = failing(named, MARKS if len(parts) > 1 else parts[0], flags.workers)
    for name in failed:
        print(f"fails without a mutant: {name}", flush=True)
    tried = [mutant for mutant in mutants if not fails_without(mutant, failed)]
    for mutant in mutants:
        if mutant not in tried:
            print(f"invalid   {mutant}", flush=True)
            counts[mutant.subpackage]["invalid"] += 1
    for mutant, result, seconds in run(tried, flags.workers, parts):
        print(f"{result:9} {seconds:5.0f} s  {mutant}", flush=True)
        counts[mutant.subpackage][result if result in ("killed", "survived") else "invalid"] += 1
        if result != "killed":
            survivors.append(str(mutant))
    SURVIVORS.write_text("".join(f"{line}\n" for line in survivors), encoding="utf-8")
    print(f"\n{'subpackage':<12} {'killed':>7} {'of':>5}")
    for subpackage, found in sorted(counts.items()):
        print(f"{subpackage:<12} {found['killed']:>7} {found.total():>5}")
    killed, total = (
        sum(found["killed"] for found in counts.values()),
        sum(map(collections.Counter.total, counts.values())),
    )
    print(f"{'all':<12} {killed:>7} {total:>5}  {killed / max(total, 1):.0%}")
    sys.exit(0 if killed >= 0.95 * total else 1)


if __name__ == "__main__":
    main()
