"""Why a run ended early, each with the exit code that tells a supervisor what to do."""


class TrainingError(Exception):
    """A run that cannot go on. `exit_code` is what the program returns."""

    exit_code = 1


class Diverged(TrainingError):
    """The loss is not a number any more. Restarting would diverge again: change the recipe."""

    exit_code = 70


class EvaluatorFailed(TrainingError):
    """One of the recipe's evaluators raised an error. The training went on to its end."""


class UnreadableInput(TrainingError):
    """A picture could not be read. Mend or remove it, or set `data.on_bad_image=skip`."""

    exit_code = 66


class CheckpointError(TrainingError):
    """A checkpoint could not be written or none could be read. Restart once there is space, or the disk is mended."""

    exit_code = 74


class Interrupted(TrainingError):
    """The run was asked to stop (SIGTERM, SIGINT) and saved its state. Restart it: it goes on where it stopped."""

    exit_code = 75
