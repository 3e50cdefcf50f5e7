"""Checkpoints that survive a kill at any moment.

TensorFlow writes a checkpoint under temporary names and renames the files. Then a manifest with the size and hash of
every file is renamed into place. A checkpoint is damaged if its manifest is missing or does not match its files, such
as after a kill. A damaged checkpoint is reported, and the previous checkpoint is used. There is no separate index of
the checkpoints. Only reading and writing of arrays import TensorFlow.

    checkpoints/ckpt-200.index, ckpt-200.data-...   the arrays of a `State`
    checkpoints/ckpt-200.json                       the manifest
    checkpoints/best/ckpt-100...                    the same for the best evaluation so far

The best checkpoint is written first, and a run resumes from the newest checkpoint in both folders. A kill between the
two writes therefore loses nothing.

`training.jax.sharded_checkpoints` writes the checkpoints of several hosts, in directories such as checkpoints/ckpt_200.
"""

import glob
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from concurrent import futures
from typing import Any

import numpy as np
from absl import logging

from keras_vit.runs.errors import CheckpointMismatch, StorageError
from keras_vit.util import file_io, storage
from keras_vit.util.progress import Progress

NAME = "ckpt"
BEST = "best"  # folder of the best checkpoint
_OF_ORBAX = "_CHECKPOINT_METADATA"  # file that Orbax still changes after the other files of a directory


class CheckpointStore:
    """The newest checkpoints of a run, and the best checkpoint.

    Several workers share the directory, and only the chief writes.

    Args:
        directory: Directory of the checkpoints.
        keep: Number of checkpoints to keep.
        writes: Whether this process writes.
        background: Whether `save` only copies the arrays, and another thread writes them. `save` and `wait` raise the
            error of the earlier write.
    """

    whole_arrays = True  # `save` takes whole arrays instead of the parts of a process

    def __init__(self, directory: str, keep: int = 2, writes: bool = True, background: bool = False):
        self.directory, self.keep, self.writes = directory, keep, writes
        self._thread = futures.ThreadPoolExecutor(1, "checkpoints") if background else None
        self._written: futures.Future | None = None
        self.best = os.path.join(directory, BEST)
        if writes:
            remove_unfinished(directory)
            remove_unfinished(self.best)

    def save(self, values: Iterable[tuple[str, Any]], best: bool = False) -> None:
        """Write a checkpoint, unless its step is saved already.

        `values` are pairs of (name, array) and include `"step"`. If writing fails, the older checkpoints stay.
        """
        if not self.writes:
            for _ in values:  # takes part in the gathering of sharded arrays
                pass
            return
        self.wait()  # there is at most one copy of the arrays
        if self._thread is None:
            self._save_all(dict(values), best)
        else:
            self._written = self._thread.submit(self._save_all, {name: np.array(value) for name, value in values}, best)

    def wait(self) -> None:
        """Wait until all checkpoints are written."""
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def newest(self) -> str | None:
        """Return the path of the newest intact checkpoint, or None."""
        return next((path for path in saved(self.directory) if problem_with(path) is None), None)

    def restore(self, specs: Mapping[str, tuple], best: bool = False) -> dict[str, Any] | None:
        """Read the newest intact checkpoint, or the best one, and log the problem of each newer, damaged checkpoint.

        `specs` maps names to the shape and dtype of every array. Returns None if there is no checkpoint, or no intact
        best one.
        """
        if self.whole_arrays and has_sharded(self.directory):
            raise CheckpointMismatch(
                f"The checkpoints in {self.directory} are from several hosts on JAX. To resume from them: "
                "KERAS_BACKEND=jax keras-vit train ..."
            )
        steps = reversed(saved_steps(self.best))
        paths = [path_of(self.best, step) for step in steps] if best else saved(self.directory)
        for path in paths:
            problem = self._problem_with(path)
            if problem is None:
                with Progress(f"Reading the {'best' if best else 'last'} checkpoint"):
                    return self._read(path, specs)
            logging.warning("Checkpoint %s is not usable: %s. Trying the previous checkpoint.", path, problem)
        if not best and any(os.path.isdir(path) or os.path.exists(manifest_of(path)) for path in paths):
            raise StorageError(
                f"None of the checkpoints in {self.directory} is complete: {', '.join(paths)}. Repair the disk, or "
                "delete the directory to start from the beginning."
            )
        return None  # there is at most an unfinished first checkpoint

    def _problem_with(self, path: str) -> str | None:
        return problem_with(path)

    def _read(self, path: str, specs: Mapping[str, tuple]) -> dict[str, Any]:
        return read(path, specs)

    def _save_all(self, arrays: dict[str, Any], best: bool) -> None:
        if best:
            self._save(arrays, self.best)
        self._save(arrays, self.directory)
        storage.upload(self.directory)

    def _save(self, arrays: dict[str, Any], directory: str) -> None:
        from tensorflow.errors import OpError

        step = int(arrays["step"])
        prefix = whole_path(directory, step)
        if not problem_with(prefix):
            return
        try:
            file_io.make_directory(directory)
            with Progress(f"Writing the checkpoint of step {step}"):
                remove(prefix)
                write(prefix, arrays)
                write_manifest(prefix)
        except (OpError, OSError) as error:
            remove(prefix)
            reason, intact = str(error).strip().split("\n", 1)[0], (self.newest() or "").rpartition("-")[2]
            kept = f"The checkpoint of step {intact} is intact." if intact else "There is no older checkpoint."
            raise StorageError(
                f"Could not write the checkpoint of step {step} to {directory}: {reason}. {kept} "
                "Free some space or pass another --workdir, then start again."
            ) from error
        self._keep_newest(step)

    def _keep_newest(self, step: int) -> None:
        """Delete all checkpoints except the newest few of `step` and earlier steps, and the best checkpoint.

        Checkpoints of later steps are damaged; otherwise the run would have resumed from them.
        """
        for directory, keep in ((self.directory, self.keep), (self.best, 1)):
            steps = saved_steps(directory)
            kept = [known for known in steps if known <= step][-keep:]
            for known in set(steps) - set(kept):
                remove(path_of(directory, known))


def write(prefix: str, arrays: Mapping[str, Any]) -> None:
    """Write arrays to a TensorFlow checkpoint."""
    import tensorflow as tf

    with tf.device("CPU:0"):
        tensors = [tf.convert_to_tensor(array) for array in arrays.values()]
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=list(arrays),
            shape_and_slices=[""] * len(tensors),
            tensors=tensors,
        )


def read(prefix: str, specs: Mapping[str, tuple]) -> dict[str, np.ndarray]:
    """Read all arrays of a checkpoint. Raises a CheckpointMismatch if any array does not fit `specs`."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(prefix)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    check_specs(prefix, {name: (tuple(shape), dtypes[name].name) for name, shape in shapes.items()}, specs)
    return {name: reader.get_tensor(name) for name in specs}


def check_specs(path: str, found: Mapping[str, tuple], specs: Mapping[str, tuple]) -> None:
    """Raise a CheckpointMismatch if the names, shapes or dtypes of a checkpoint's arrays differ from `specs`."""
    wrong = [name for name in {**specs, **found} if found.get(name) != specs.get(name)]
    if wrong:
        there, here = _in_words(found.get(wrong[0])), _in_words(specs.get(wrong[0]))
        raise CheckpointMismatch(
            f"Checkpoint {path} does not fit this recipe: {wrong[0]!r} is {there} in the checkpoint and {here} in the "
            f"recipe, and {len(wrong) - 1} more arrays differ. Pass another --workdir to start a new run, or the "
            "recipe with which this run was started."
        )


def _in_words(spec: tuple | None) -> str:
    return "missing" if spec is None else f"{spec[1]} {list(spec[0])}"


def whole_path(directory: str, step: int) -> str:
    """Return the prefix of the files of a checkpoint that one process writes."""
    return os.path.join(directory, f"{NAME}-{step}")


def sharded_path(directory: str, step: int) -> str:
    """Return the directory of a checkpoint that several hosts write."""
    return os.path.join(directory, f"{NAME}_{step}")


def path_of(directory: str, step: int) -> str:
    """Return the path of an existing checkpoint: a prefix of files, or the directory of several hosts."""
    sharded = sharded_path(directory, step)
    return sharded if os.path.isdir(sharded) else whole_path(directory, step)


def manifest_of(path: str) -> str:
    """Return the path of the manifest of a checkpoint."""
    return os.path.join(path, "manifest.json") if os.path.isdir(path) else f"{path}.json"


def has_sharded(directory: str) -> bool:
    """Return whether several hosts wrote the checkpoints of a run."""
    return any(map(os.path.isdir, saved(directory)))


def saved(directory: str) -> list[str]:
    """Return the paths of all checkpoints of a run, the newest first, intact or damaged, with the best checkpoint.

    Of the same step, the best checkpoint comes first: if a signal interrupted the evaluation, only it has the score.
    """
    found = [(step, folder) for folder in (os.path.join(directory, BEST), directory) for step in saved_steps(folder)]
    return [path_of(folder, step) for step, folder in sorted(found, key=lambda pair: -pair[0])]


def saved_steps(directory: str) -> list[int]:
    """Return the sorted steps of all checkpoints in `directory`, intact or damaged."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    matches = (re.match(rf"{NAME}(?:-(\d+)\.|_(\d+)$)", name) for name in names)
    return sorted({int(match[1] or match[2]) for match in matches if match})


def complete_steps(directory: str) -> list[int]:
    """Return the sorted steps of the checkpoints in `directory` that were written to their end."""
    return [step for step in saved_steps(directory) if os.path.exists(manifest_of(path_of(directory, step)))]


def write_manifest(path: str) -> None:
    """Write the manifest of a complete checkpoint, after all of its files have reached the disk."""
    files = {}
    for name in _files(path):
        with open(name, "rb") as file:
            os.fsync(file.fileno())
        relative = os.path.relpath(name, _folder(path))
        files[relative] = {"size": os.path.getsize(name), "sha256": file_io.sha256(name)}
    file_io.write_json(manifest_of(path), {"files": files})


def problem_with(path: str) -> str | None:
    """Return a description of the damage to a checkpoint, or None if the checkpoint is intact."""
    manifest = manifest_of(path)
    if not os.path.exists(manifest):
        return "it has no manifest, so it was not written to the end"
    try:
        files = file_io.read_json(manifest)["files"]
        expected = {name: (int(entry["size"]), str(entry["sha256"])) for name, entry in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        return f"its manifest cannot be read ({error!r})"
    if ("_METADATA" if os.path.isdir(path) else f"{os.path.basename(path)}.index") not in expected:
        return "its manifest does not name its files"
    for name, (size, sha256) in expected.items():
        file = os.path.join(_folder(path), name)
        if not os.path.exists(file):
            return f"{name} is missing"
        if os.path.getsize(file) != size:
            return f"{name} has {os.path.getsize(file)} bytes instead of {size}"
        if file_io.sha256(file) != sha256:
            return f"the content of {name} has changed"
    return None


def remove(path: str) -> None:
    """Delete every file of a checkpoint, its manifest first."""
    for file in (manifest_of(path), *_files(path)):
        if os.path.exists(file):
            os.remove(file)
    if os.path.isdir(path):
        shutil.rmtree(path)


def remove_unfinished(directory: str) -> None:
    """Delete the temporary files of unfinished checkpoints, which killed processes have left."""
    for pattern in (f"{NAME}-*temp*", f"{NAME}_*.orbax-checkpoint-tmp*"):
        for path in glob.glob(os.path.join(glob.escape(directory), pattern)):
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def _folder(path: str) -> str:
    """Return the folder to which the names in the manifest of a checkpoint are relative."""
    return path if os.path.isdir(path) else os.path.dirname(path)


def _files(path: str) -> list[str]:
    """Return the files of a checkpoint except its manifest."""
    if os.path.isdir(path):
        found = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
        return sorted({*found} - {manifest_of(path), os.path.join(path, _OF_ORBAX)})
    escaped = glob.escape(path)
    return sorted({*glob.glob(f"{escaped}.index*"), *glob.glob(f"{escaped}.data-*")})
