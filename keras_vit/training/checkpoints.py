"""Checkpoints that survive a kill at any moment.

`tf.train.CheckpointManager` writes each one under a temporary name and renames it. A manifest with the size and hash of
every file follows, renamed into place last: a checkpoint without one, or that does not agree with it, is torn, is
reported, and the one before it is used.

    checkpoints/ckpt-200.index, ckpt-200.data-...   the variables of `TrainState`
    checkpoints/ckpt-200.json                       the manifest
    checkpoints/best/ckpt-100...                    the same for the best evaluation so far
"""

import glob
import hashlib
import json
import os
import re
import shutil

import tensorflow as tf
from absl import logging

from keras_vit.training.errors import CheckpointError
from keras_vit.training.run_directory import write_atomically

_NAME = "ckpt"


class CheckpointStore:
    """The newest few checkpoints of a run, and the best one.

    Args:
        variables: everything that is saved, by name; must hold `"step"`.
        directory: where; made if it does not exist.
        keep: how many of the newest are kept.
        writes: whether this process writes; several workers share a directory, and only their chief does.
    """

    def __init__(self, variables: dict[str, tf.Variable], directory: str, keep: int = 2, writes: bool = True):
        self.step = variables["step"]
        self.directory = directory
        self.writes = writes
        self.checkpoint = tf.train.Checkpoint(**{name.replace("/", "|"): v for name, v in variables.items()})
        _ = self.checkpoint.save_counter  # is saved with the rest, and exists only from its first use on
        self.newest = tf.train.CheckpointManager(self.checkpoint, directory, max_to_keep=keep, checkpoint_name=_NAME)
        best = os.path.join(directory, "best")
        self.best = tf.train.CheckpointManager(self.checkpoint, best, max_to_keep=1, checkpoint_name=_NAME)
        if writes:
            remove_unfinished(directory)
            remove_unfinished(best)

    def save(self, best: bool = False) -> None:
        """Writes a checkpoint of the present step, unless there is one already.

        Args:
            best: writes it as the best one as well.

        Raises:
            CheckpointError: if it cannot be written, for example because the disk is full. Older ones stay.
        """
        if not self.writes:
            return
        for manager in (self.newest, self.best) if best else (self.newest,):
            self._save(manager)

    def _save(self, manager: tf.train.CheckpointManager) -> None:
        step = int(self.step.numpy())
        prefix = os.path.join(manager.directory, f"{_NAME}-{step}")
        if os.path.exists(f"{prefix}.json") and not problem_with(prefix):
            return
        older = [path for path in manager.checkpoints if path != prefix]
        try:
            remove(prefix)
            manager.save(checkpoint_number=step)
            write_manifest(prefix, step)
        except (tf.errors.OpError, OSError) as error:
            remove(prefix)
            kept = f"The checkpoint before it, {older[-1]}, is intact." if older else "There is no older checkpoint."
            raise CheckpointError(
                f"Could not write the checkpoint of step {step} to {manager.directory}: {error}. {kept} "
                "Free some space or give another --workdir, then start again."
            ) from error
        for manifest in glob.glob(os.path.join(glob.escape(manager.directory), f"{_NAME}-*.json")):
            if not os.path.exists(manifest.removesuffix(".json") + ".index"):  # deleted by the manager
                os.remove(manifest)

    def restore(self) -> int | None:
        """Loads the newest checkpoint that is whole, saying why any newer one is not.

        Returns:
            Its step, or None if there is no checkpoint at all.

        Raises:
            CheckpointError: if there are checkpoints but none is usable.
        """
        found = saved_steps(self.directory)
        torn = []
        for step in reversed(found):
            prefix = os.path.join(self.directory, f"{_NAME}-{step}")
            problem = problem_with(prefix)
            if problem is None:
                self._read(prefix)
                return step
            logging.warning("Checkpoint %s is not usable: %s. Trying the one before it.", prefix, problem)
            torn.append(prefix)
        best = saved_steps(self.best.directory)
        if found and best and problem_with(os.path.join(self.best.directory, f"{_NAME}-{best[-1]}")) is None:
            self._read(os.path.join(self.best.directory, f"{_NAME}-{best[-1]}"))
            return best[-1]
        if any(os.path.exists(f"{prefix}.json") for prefix in torn):
            raise CheckpointError(
                f"None of the checkpoints in {self.directory} is whole: {', '.join(torn)}. Mend the disk, or delete "
                "the directory to start from the beginning."
            )
        return None  # at most the torn start of a first checkpoint

    def _read(self, prefix: str) -> None:
        try:
            self.checkpoint.read(prefix).assert_consumed()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise CheckpointError(
                f"Checkpoint {prefix} does not fit this recipe: {str(error).splitlines()[0]} Give another --workdir to "
                "start a new run, or the recipe that this one was started with."
            ) from error


def saved_steps(directory: str) -> list[int]:
    """Returns the steps, in order, of which there is any file of a checkpoint in `directory`."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    matches = (re.match(rf"{_NAME}-(\d+)\.", name) for name in names)
    return sorted({int(match.group(1)) for match in matches if match})


def write_manifest(prefix: str, step: int) -> None:
    """Writes the manifest of a complete checkpoint, and puts all of it on the disk before returning."""
    files = {}
    for path in _files(prefix):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        files[os.path.basename(path)] = {"size": os.path.getsize(path), "sha256": _hash(path)}
    write_atomically(f"{prefix}.json", json.dumps({"step": step, "files": files}, indent=1))


def problem_with(prefix: str) -> str | None:
    """Returns what is wrong with a checkpoint, or None if it is as it was written."""
    manifest = f"{prefix}.json"
    if not os.path.exists(manifest):
        return "it has no manifest, so it was not written to the end"
    try:
        with open(manifest, encoding="utf-8") as file:
            files = json.load(file)["files"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        return f"its manifest cannot be read ({error!r})"
    for name, expected in files.items():
        path = os.path.join(os.path.dirname(prefix), name)
        if not os.path.exists(path):
            return f"{name} is missing"
        if os.path.getsize(path) != expected["size"]:
            return f"{name} has {os.path.getsize(path)} bytes instead of {expected['size']}"
        if _hash(path) != expected["sha256"]:
            return f"the content of {name} has changed"
    return None


def remove(prefix: str) -> None:
    """Deletes every file of a checkpoint, its manifest first."""
    for path in (f"{prefix}.json", *_files(prefix)):
        if os.path.exists(path):
            os.remove(path)


def remove_unfinished(directory: str) -> None:
    """Deletes what a process that was killed while it wrote a checkpoint left under temporary names."""
    for path in glob.glob(os.path.join(glob.escape(directory), f"{_NAME}-*temp*")):
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def _files(prefix: str) -> list[str]:
    escaped = glob.escape(prefix)
    return sorted({*glob.glob(f"{escaped}.index*"), *glob.glob(f"{escaped}.data-*")})


def _hash(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
