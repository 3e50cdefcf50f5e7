"""Checkpoints in the format of Orbax, with the manifest of `runs.checkpoints`. Imports JAX."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from keras_vit.runs import checkpoints
from keras_vit.runs.errors import StorageError


def described(path: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and dtype of each array of a checkpoint, by name."""
    import orbax.checkpoint as ocp
    from etils import epath

    with _reading(path):
        metadata = ocp.PyTreeCheckpointHandler().metadata(epath.Path(path))
    return {name: (tuple(array.shape), np.dtype(array.dtype).name) for name, array in metadata.items()}


def read(path: str, targets: Mapping[str, Any]) -> dict[str, Any]:
    """Read named arrays of a checkpoint.

    `targets` maps a name to a `jax.ShapeDtypeStruct`, to read onto devices, or to an array, to read into host memory.
    """
    import orbax.checkpoint as ocp

    arguments = ocp.checkpoint_utils.construct_restore_args(dict(targets))
    request = ocp.args.PyTreeRestore(dict(targets), restore_args=arguments, partial_restore=True)
    with ocp.PyTreeCheckpointer() as checkpointer, _reading(path):
        return checkpointer.restore(path, request)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise StorageError(
            f"The checkpoint {path} cannot be read: {str(error).strip()}. Repair the disk, or delete that directory to "
            "resume from the checkpoint before it."
        ) from error


def writer() -> Any:
    """Return an asynchronous writer of `ckpt_N` directories with manifests."""
    import orbax.checkpoint as ocp

    class WithManifest(ocp.StandardCheckpointHandler):
        def finalize(self, directory: Any) -> None:  # called in the first process before the directory is renamed
            super().finalize(directory)
            checkpoints.write_manifest(os.fspath(directory))

    @ocp.args.register_with_handler(WithManifest, for_save=True, for_restore=True)
    class Arrays(ocp.args.StandardSave):
        pass

    class Writer(ocp.AsyncCheckpointer):
        def save(self, path: str, arrays: dict[str, Any]) -> None:
            super().save(path, args=Arrays(arrays), force=True)

    return Writer(WithManifest())
