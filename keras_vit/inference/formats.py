"""Table of the formats of exported artifacts, for all code that writes, opens or describes artifacts."""

import dataclasses
import importlib
import importlib.util
import os
from typing import Any

from keras_vit.util import extras


@dataclasses.dataclass(frozen=True)
class Format:
    """Format of exported artifacts.

    Attributes:
        name: Name in `export(format=...)` and `keras-vit export --format`.
        extension: Extension of the file; empty for a directory of versions.
        predictor: Name of the class in `keras_vit.inference.<name>` that opens an artifact. It is called with
            `(path, num_threads)`.
        writer: Module in `keras_vit.exporting` with `write(model, path, *, card, images, **options)`, which returns the
            path of the artifact and its comparison with the model.
        precisions: Values of the option `precision`.
        packages: Additional packages for writing. The extra with the format's name installs them.
        parts: Extensions of the artifact's other files, which have the same name.
    """

    name: str
    extension: str
    predictor: str
    writer: str
    precisions: tuple[str, ...] = ("float32",)
    packages: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()

    def open(self, path: str, num_threads: int | None = None) -> Any:
        """Open an artifact of this format as a `Predictor`."""
        module = importlib.import_module(f"keras_vit.inference.{self.name}")
        return getattr(module, self.predictor)(path, num_threads)

    def require_packages(self) -> None:
        """Raise an error if the packages for writing this format are missing."""
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            raise ImportError(f"Writing {self.name} files needs {', '.join(missing)}: {extras.install(self.name)}")


# Modules are imported on use: readers also need this table, and writers come later in the import order.
SAVED_MODEL = Format(
    "saved_model",
    "",
    "SavedModelPredictor",
    "saved_model",
    precisions=("float32", "bfloat16", "mixed_bfloat16", "float16", "mixed_float16"),
)
TFLITE = Format(
    "tflite",
    ".tflite",
    "TFLitePredictor",
    "tflite",
    precisions=("float32", "float16", "dynamic_int8", "int8", "int16x8"),
)
FORMATS = {
    format.name: format
    for format in (
        SAVED_MODEL,
        TFLITE,
        Format("onnx", ".onnx", "OnnxPredictor", "onnx_openvino", packages=("tf2onnx", "onnx")),
        Format(
            "openvino",
            ".xml",
            "OpenVinoPredictor",
            "onnx_openvino",
            precisions=("float32", "mixed_bfloat16"),
            packages=("openvino",),
            parts=(".bin",),
        ),
    )
}
PRECISIONS = tuple(dict.fromkeys(name for format in FORMATS.values() for name in format.precisions))
EXTENSIONS = {format.extension: format for format in FORMATS.values() if format.extension}


def of_file(path: str) -> Format | None:
    """Return the format of a file by its extension, or None if the extension is unknown."""
    return EXTENSIONS.get(os.path.splitext(path)[1])


def find(path: str) -> tuple[str, Format] | None:
    """Return the artifact at a path and its format, or None.

    The result is None for a run, a `.keras` file, a checkpoint, and a path that does not exist.

    Raises:
        FileNotFoundError: If the path has the extension of an artifact and does not exist.
        ValueError: If a directory contains several artifacts.
    """
    if by_extension := of_file(path):
        if not os.path.exists(path):
            raise FileNotFoundError(f"No artifact {path!r}.")
        return path, by_extension
    found = _in_directory(path) if os.path.isdir(path) else []
    if not found:
        return None
    from keras_vit.runs import run_directory  # imports Keras' backend, which artifacts do not need

    if run_directory.is_run(path):  # a run may also contain artifacts
        return None
    if len(found) > 1:
        raise ValueError(f"The directory {path!r} must have one artifact. Received: {', '.join(sorted(dict(found)))}.")
    return found[0]


def _in_directory(path: str) -> list[tuple[str, Format]]:
    names = os.listdir(path)
    if "saved_model.pb" in names:
        return [(path, SAVED_MODEL)]
    if versions := list_versions(path):
        return [(os.path.join(path, str(versions[-1])), SAVED_MODEL)]
    files = ((os.path.join(path, name), of_file(name)) for name in names)
    return [(file, format) for file, format in files if format]


def list_versions(base: str) -> list[int]:
    """Return the versions in a directory, in ascending order. A version is a folder whose name is a plain number."""
    if not os.path.isdir(base):
        return []
    return sorted(int(n) for n in os.listdir(base) if n.isdecimal() and os.path.isdir(os.path.join(base, n)))
