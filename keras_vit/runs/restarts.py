"""Limit of restarts in a row that produce no newer checkpoint.

A supervisor numbers the starts of a run from 0, in the environment variable `KERAS_VIT_RESTART`. All processes of a
start read the same number and the same files, so that all of them make the same decision before they wait for each
other. Without the variable, there is no limit.

A Job of Kubernetes does not number the starts of its pods. The variable then contains a name, made of the Job and the
pod's index, and each pod counts its own starts. The exit code of a single pod ends the Job.

    restarts.json      the step from which the last start resumed, and the numbers of the first and the last such start
    starts/NAME.json   the newest step, and the number of earlier starts of a pod with this step
"""

import os

from keras_vit.runs import checkpoints
from keras_vit.runs.errors import NoProgress
from keras_vit.runs.run_directory import CHECKPOINTS
from keras_vit.util import file_io, storage

VARIABLE = "KERAS_VIT_RESTART"
FILE = "restarts.json"
LIMIT = 3


def check(workdir: str) -> None:
    """Raise a NoProgress error if this start would be one restart too many."""
    number, name = _number(), os.environ.get(VARIABLE, "")
    if not number and (number is not None or not name):
        return
    directory = storage.fetched(workdir, small=True, must_exist=False)
    folders = (os.path.join(directory, CHECKPOINTS), os.path.join(directory, CHECKPOINTS, checkpoints.BEST))
    newest = max((step for folder in folders for step in checkpoints.complete_steps(folder)), default=0)
    if number:
        known = _known(directory, number)
        since = number - known["first" if newest == known["step"] else "last"]
    else:
        since = _count(workdir, name, newest)
    if since > LIMIT:
        raise NoProgress(
            f"{LIMIT} restarts in a row produced no newer checkpoint than step {newest}. See the errors of "
            f"these starts in the logs, and start the run again after correcting the cause. Received: {VARIABLE}="
            f"{name}."
        )


def record(directory: str, step: int) -> None:
    """Record that this start resumes from the checkpoint of `step`; 0 is a new run."""
    number = _number()
    if number is None:
        return
    known = _known(directory, number)
    first = known["first"] if step == known["step"] else number
    file_io.write_json(os.path.join(directory, FILE), {"step": step, "first": first, "last": number})


def _count(workdir: str, name: str, newest: int) -> int:
    """Return the number of earlier starts of a pod with the same newest step, and count this start."""
    with storage.written(os.path.join(workdir, "starts", f"{name}.json"), "--workdir") as path:
        known = file_io.read_json(path) if os.path.exists(path) else {}
        count = known["count"] + 1 if known.get("step") == newest else 0
        file_io.write_json(path, {"step": newest, "count": count})
    return count


def _number() -> int | None:
    """Return the number of this start, or None without a supervisor."""
    text = os.environ.get(VARIABLE, "")
    return int(text) if text.isdecimal() else None


def _known(directory: str, number: int) -> dict[str, int]:
    """Return the record of an earlier start by the same supervisor."""
    path = os.path.join(directory, FILE)
    known = file_io.read_json(path) if os.path.exists(path) else {}
    return known if known.get("last", number) <= number and known else {"step": 0, "first": 0, "last": 0}
