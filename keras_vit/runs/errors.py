"""Errors that end a run early. A supervisor decides by the error's exit code whether to restart."""

import re

# Errors that TensorFlow, and JAX on CPUs and GPUs, raise in collective operations after another process has ended.
_LOST = re.compile(
    r"Collective ops is aborted by|Gloo .* failed|ncclRemoteError|Connection (reset|closed) by peer|"
    r"Barrier (timed out|failed)|in error before the barrier|stopped sending heartbeats|coordination service"
)


class TrainingError(Exception):
    """Base class of errors that end a run. The program exits with `exit_code`."""

    exit_code = 1


class CheckpointMismatch(TrainingError):
    """The checkpoint does not fit the recipe. Pass the recipe of the checkpoint; a restart does not help."""

    exit_code = 2


class Diverged(TrainingError):
    """The loss is infinite or NaN. A restart would diverge again, so change the recipe."""

    exit_code = 70


class NoProgress(TrainingError):
    """Several restarts in a row produced no newer checkpoint. A restart would most likely end in the same way."""

    exit_code = 70


class EvaluatorFailed(TrainingError):
    """An evaluator of the recipe raised an error. Training itself was completed."""


class StorageError(TrainingError):
    """A file of the run cannot be written or read. Free some space or repair the disk, then restart."""

    exit_code = 74


class Interrupted(TrainingError):
    """SIGTERM or SIGINT stopped the run, and nothing is lost. A restart resumes the run."""

    exit_code = 75


def lost_worker(error: BaseException | None) -> str | None:
    """Return a message for the user if an error, or its cause, indicates that another worker is lost."""
    if error is None:
        return None
    text = str(getattr(error, "message", error)).strip()
    if text.startswith("Graph execution error"):  # TensorFlow first lists the calls that created the operation
        found = _LOST.search(text)
        text = text[found.start() :] if found else text
    # JAX raises a ValueError while it waits for arrays of a failed collective operation.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if not {"OpError", "JaxRuntimeError", "ValueError"} & kinds or not _LOST.search(text.split("\n", 1)[0]):
        return lost_worker(error.__cause__)
    text = text.replace(":\n", ": ").split("\n", 1)[0]  # the next line names the worker
    return (
        f"Another worker ended or cannot be reached; see its log. ({text}) Start all workers again to resume from "
        "the last checkpoint."
    )
