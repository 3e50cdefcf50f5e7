"""Reasons why a run ends early, each with the exit code that tells a supervisor what to do."""


class TrainingError(Exception):
    """A run that cannot go on. `exit_code` is what the program returns."""

    exit_code = 1


class CheckpointMismatch(TrainingError):
    """A checkpoint that does not fit the recipe. A restart alone does not help: give the recipe that wrote it."""

    exit_code = 2


class Diverged(TrainingError):
    """A loss that is infinite or not a number. A restart would diverge again: change the recipe."""

    exit_code = 70


class EvaluatorFailed(TrainingError):
    """An evaluator of the recipe that raised an error. The training itself went on to its end."""


class StorageError(TrainingError):
    """A file of the run that cannot be written or read. Restart once there is space, or the disk is repaired."""

    exit_code = 74


class Interrupted(TrainingError):
    """A run that was asked to stop by SIGTERM or SIGINT. Nothing is lost: a restart resumes it."""

    exit_code = 75
