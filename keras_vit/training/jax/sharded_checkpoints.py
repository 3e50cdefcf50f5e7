"""Checkpoints of several hosts: each host writes its parts of the arrays with Orbax while training continues.

Orbax renames a checkpoint into place after all hosts have written their parts. If a host is killed earlier, the
previous checkpoint remains the newest. `orbax.checkpoint` reads these checkpoints without this package, on any number
of devices.

    checkpoints/ckpt_200/default       the arrays of a `State` by name
    checkpoints/best/ckpt_100/default  the same for the best evaluation so far
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from keras_vit._progress import Progress
from keras_vit.training import checkpoints
from keras_vit.training.errors import StorageError
from keras_vit.training.jax.devices import Devices

_ITEM = "default"  # Orbax's name for the folder of the arrays


class ShardedCheckpointStore:
    """The newest checkpoints of a run, and the best checkpoint, like `checkpoints.CheckpointStore`.

    Every process must create a store and call the same methods.
    """

    whole_arrays = False

    def __init__(self, directory: str, keep: int, devices: Devices):
        self.directory, self.devices = os.path.abspath(directory), devices
        self.best = os.path.join(self.directory, checkpoints.BEST)
        self._newest, self._best = _manager(self.directory, keep), _manager(self.best, keep=1)

    def save(self, values: Iterable[tuple[str, Any]], best: bool = False) -> None:
        """Copy the parts of this process and start writing them. `save` and `wait` raise errors of earlier writes."""
        import orbax.checkpoint as ocp

        arrays = dict(values)
        step = int(arrays["step"])
        with self._errors():
            for manager in (self._newest, self._best) if best else (self._newest,):
                if step not in manager.all_steps():
                    manager.save(step, args=ocp.args.StandardSave(arrays), force=True)

    def wait(self) -> None:
        """Wait until all checkpoints are written."""
        with Progress("Writing the last checkpoint"), self._errors():
            self._newest.wait_until_finished()
            self._best.wait_until_finished()

    def newest(self) -> str | None:
        """Return the path of the newest checkpoint, or None."""
        steps = checkpoints.saved_steps(self.directory)
        return checkpoints.sharded_path(self.directory, steps[-1]) if steps else None

    def restore(self, specs: Mapping[str, tuple]) -> dict[str, Any] | None:
        """Read the newest checkpoint onto the devices, or return None if none exists; see `CheckpointStore.restore`."""
        path = self.newest()
        if path is None:
            return None
        with Progress("Reading the last checkpoint"):
            checkpoints.check_specs(path, described(path), specs)
            on_devices = {name: self.devices.description(*spec) for name, spec in specs.items() if "/" in name}
            return read(path, {name: np.empty(*spec) for name, spec in specs.items()} | on_devices)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            raise StorageError(
                f"Could not write a checkpoint to {self.directory}: {str(error).strip()}. The newest intact checkpoint "
                f"is {self.newest()}. Free some space or pass another --workdir, then start again."
            ) from error


def described(path: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and dtype of each array of a checkpoint, by name."""
    import orbax.checkpoint as ocp
    from etils import epath

    metadata = ocp.PyTreeCheckpointHandler().metadata(epath.Path(path) / _ITEM)
    return {name: (tuple(array.shape), np.dtype(array.dtype).name) for name, array in metadata.items()}


def read(path: str, targets: Mapping[str, Any]) -> dict[str, Any]:
    """Read named arrays of a checkpoint.

    `targets` maps a name to a `jax.ShapeDtypeStruct`, to read onto devices, or to an array, to read into host memory.
    """
    import orbax.checkpoint as ocp

    arguments = ocp.checkpoint_utils.construct_restore_args(dict(targets))
    request = ocp.args.PyTreeRestore(dict(targets), restore_args=arguments, partial_restore=True)
    with ocp.PyTreeCheckpointer() as checkpointer:
        try:
            return checkpointer.restore(os.path.join(path, _ITEM), request)
        except (OSError, ValueError) as error:
            raise StorageError(
                f"The checkpoint {path} cannot be read: {str(error).strip()}. Repair the disk, or delete that "
                "directory to resume from the checkpoint before it."
            ) from error


def _manager(directory: str, keep: int) -> Any:
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep,
        step_prefix=checkpoints.NAME,
        cleanup_tmp_directories=True,
        # The prefix keeps the synchronization of the two managers apart.
        multiprocessing_options=ocp.options.MultiprocessingOptions(barrier_sync_key_prefix=os.path.basename(directory)),
    )
    return ocp.CheckpointManager(directory, options=options)
