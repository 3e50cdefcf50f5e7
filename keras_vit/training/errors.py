"""Errors that end a run early. A supervisor decides by the error's exit code whether to restart."""


class TrainingError(Exception):
    """Base class of errors that end a run. The program exits with `exit_code`."""

    exit_code = 1


class CheckpointMismatch(TrainingError):
    """The checkpoint does not fit the recipe. Pass the recipe of the checkpoint; a restart does not help."""

    exit_code = 2


class Diverged(TrainingError):
    """The loss is infinite or NaN. A restart would diverge again, so change the recipe."""

    exit_code = 70


class EvaluatorFailed(TrainingError):
    """An evaluator of the recipe raised an error. Training itself was completed."""


class StorageError(TrainingError):
    """A file of the run cannot be written or read. Free some space or repair the disk, then restart."""

    exit_code = 74


class Interrupted(TrainingError):
    """SIGTERM or SIGINT stopped the run, and nothing is lost. A restart resumes the run."""

    exit_code = 75
