"""Checkpoints of several hosts: each host writes its parts of the arrays with Orbax while training continues.

After all hosts have written their parts, the first host adds a manifest as in `runs.checkpoints`, and Orbax
renames the checkpoint into place. If a host is killed earlier, the previous checkpoint remains the newest.
`orbax.checkpoint` reads these checkpoints without this package, on any number of devices.

    checkpoints/ckpt_200/               the arrays of a `State` by name
    checkpoints/ckpt_200/manifest.json  the manifest
    checkpoints/best/ckpt_100/          the same for the best evaluation so far
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from keras_vit.runs import checkpoints, orbax_files
from keras_vit.runs.errors import StorageError
from keras_vit.training.jax.devices import Devices
from keras_vit.util.progress import Progress


class ShardedCheckpointStore(checkpoints.CheckpointStore):
    """The newest checkpoints of a run, and the best checkpoint.

    Every process must create a store and call the same methods.
    """

    whole_arrays = False

    def __init__(self, directory: str, keep: int, devices: Devices):
        super().__init__(os.path.abspath(directory), keep, writes=jax.process_index() == 0)
        self.devices, self._writer = devices, orbax_files.writer()
        self._intact = set[str]()  # paths of checkpoints that this run has read or written
        self._step = 0  # step of the last write

    def save(self, values: Iterable[tuple[str, Any]], best: bool = False) -> None:
        """Copy the parts of this process and start writing them. `save` and `wait` raise errors of earlier writes.

        The write of the newest checkpoint starts after the best checkpoint is complete.
        """
        arrays = dict(values)
        self._step = int(arrays["step"])
        with self._errors():
            for folder in (self.best, self.directory) if best else (self.directory,):
                path = checkpoints.sharded_path(folder, self._step)
                if path not in self._intact:
                    self._writer.save(path, arrays)
                    self._intact.add(path)
            self._keep_newest(self._step)

    def wait(self) -> None:
        """Wait until all checkpoints are written."""
        with Progress("Writing the last checkpoint"), self._errors():
            self._writer.wait_until_finished()
            self._keep_newest(self._step)

    def _keep_newest(self, step: int) -> None:
        if self.writes and step:
            super()._keep_newest(step)

    def _problem_with(self, path: str) -> str | None:
        problem = super()._problem_with(path) if self.writes else None
        if self.devices.mean(problem is not None) > 0:  # all processes follow the first one
            return problem or "the first process found it damaged"
        return None

    def _read(self, path: str, specs: Mapping[str, tuple]) -> dict[str, Any]:
        checkpoints.check_specs(path, orbax_files.described(path), specs)
        on_devices = {name: self.devices.description(*spec) for name, spec in specs.items() if "/" in name}
        self._intact.add(path)
        return orbax_files.read(path, {name: np.empty(*spec) for name, spec in specs.items()} | on_devices)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            raise StorageError(
                f"Could not write a checkpoint to {self.directory}: {str(error).strip()}. The older checkpoints stay. "
                "Free some space or pass another --workdir, then start again."
            ) from error
