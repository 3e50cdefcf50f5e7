"""Model card: the description of an artifact, as JSON beside it for programs and as Markdown for people.

Each artifact has a card of its own, with the size and the SHA-256 of the artifact's files. A card that belongs to other
files is refused: labels and preprocessing of another export would give wrong answers without an error.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from keras_vit import _io

FILE_NAME = "model_card.json"
MARKDOWN_NAME = "model_card.md"
EXPORT_AGAIN = "Export the artifact again to get a new card."
_REQUIRED = {"class_names": list, "preprocess": str, "output": str, "image_shape": list, "files": dict}


def make(
    class_names: Sequence[str],
    preprocess: str,
    output: str,
    image_shape: Sequence[int],
    **details: Any,
) -> dict[str, Any]:
    """Return the description of a classifier.

    Args:
        class_names: One label for each class.
        preprocess: Preprocessing string.
        output: `"softmax"` or `"sigmoid"`.
        image_shape: Shape of a preprocessed image, `(H, W, C)`.
        **details: Anything else that JSON holds: recipe, data, metrics, sizes, hashes.
    """
    return {
        "class_names": list(class_names),
        "preprocess": preprocess,
        "output": output,
        "image_shape": list(image_shape),
        **details,
    }


def to_markdown(content: Mapping[str, Any]) -> str:
    """Return the card as a Markdown table."""
    names = content["class_names"]
    rows = {
        "architecture": content.get("architecture"),
        "parameters": f"{content['parameters']:,}" if "parameters" in content else None,
        "input": " x ".join(map(str, content["image_shape"])),
        "preprocessing": f"`{content['preprocess']}`",
        "output": f"{content['output']} over {len(names)} classes",
        "classes": ", ".join(names[:20]) + (", ..." if len(names) > 20 else ""),
        "precision": content.get("precision"),
        "size": f"{content['bytes'] / 1e6:.1f} MB" if "bytes" in content else None,
        "SHA-256 of model.keras": content.get("model_sha256"),
    }
    rows |= {f"data: {key}": value for key, value in content.get("data", {}).items()}
    rows |= {f"measured: {key}": value for key, value in content.get("metrics", {}).items()}
    rows |= {f"made with: {key}": value for key, value in content.get("versions", {}).items()}
    table = _io.markdown_table(
        ("", ""), [(_io.one_line(key), _io.one_line(value)) for key, value in rows.items() if value is not None]
    )
    return f"# Model card\n\n{table}\n"


def write(path: str, description: Mapping[str, Any], parts: Mapping[str, str]) -> dict[str, Any]:
    """Write the card of an artifact.

    Args:
        path: Name of the card.
        description: The description (`make`).
        parts: Files of the artifact by the name that they have in the card, see `parts_of`.

    Returns:
        The card: the description with `files` (size and SHA-256 of each file) and `bytes` (their sum).
    """
    files = {name: {"bytes": os.path.getsize(file), "sha256": _io.sha256(file)} for name, file in parts.items()}
    content = {**description, "bytes": sum(entry["bytes"] for entry in files.values()), "files": files}
    _io.write_json(path, content)
    return content


def read(path: str, parts: Mapping[str, str]) -> dict[str, Any]:
    """Read the card of an artifact and check that it belongs to the artifact's files.

    Args:
        path: Name of the card.
        parts: Files of the artifact by the name that they have in the card, see `parts_of`.

    Raises:
        FileNotFoundError: If there is no card, or a file that it names is missing.
        ValueError: If the card is damaged, incomplete, or belongs to other files.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"Expected the model card {path!r}, which holds the labels and the preprocessing. {EXPORT_AGAIN}"
        )
    content = _io.read_json(path)
    wrong = [name for name, kind in _REQUIRED.items() if not isinstance(content.get(name), kind)]
    if wrong:
        raise ValueError(f"The model card {path!r} lacks {', '.join(wrong)}. {EXPORT_AGAIN}")
    _check_values(path, content)
    _check_files(path, content["files"], parts)
    return content


def check_signature(path: str, content: Mapping[str, Any], shape: Sequence[int], dtype: str, num_classes: int) -> None:
    """Refuse a card whose input or classes are not those of the artifact, as after an edit by hand.

    Args:
        path: The artifact.
        content: Its card.
        shape: Shape of the artifact's input, `[batch, H, W, C]`.
        dtype: Type of its input, such as `"uint8"`.
        num_classes: Number of its classes.

    Raises:
        ValueError: If they differ.
    """
    expected = {
        "image_shape": list(map(int, shape[1:])),
        "input": str(dtype),
        "class_names": f"{num_classes} names",
    }
    received = {
        "image_shape": content["image_shape"],
        "input": content.get("input", "float32"),
        "class_names": f"{len(content['class_names'])} names",
    }
    different = [name for name in expected if expected[name] != received[name]]
    if different:
        details = ", ".join(f"{name}={received[name]} instead of {expected[name]}" for name in different)
        raise ValueError(f"The model card of {path!r} does not describe this artifact: {details}. {EXPORT_AGAIN}")


def beside(path: str) -> str:
    """Return the name of the card of a single-file artifact: `model.tflite` -> `model.tflite.json`."""
    return f"{path}.json"


def labels_beside(path: str) -> str:
    """Return the name of the labels of a single-file artifact: `model.tflite` -> `model.tflite.labels.txt`."""
    return f"{path}.labels.txt"


def labels_text(class_names: Sequence[str]) -> str:
    """Return the content of a file of labels, with one line per class."""
    return "".join(f"{_io.one_line(name)}\n" for name in class_names)


def parts_of(path: str) -> dict[str, str]:
    """Return the files of an artifact by the name that they have in its card.

    Args:
        path: A SavedModel directory, or a file; the weights of an OpenVINO model belong to it.
    """
    if os.path.isdir(path):
        names = ["saved_model.pb"]
        if os.path.isdir(os.path.join(path, "variables")):
            names += [f"variables/{name}" for name in sorted(os.listdir(os.path.join(path, "variables")))]
        return {name: os.path.join(path, *name.split("/")) for name in names}
    # Names without the stem: a file that is renamed together with its card is still the same artifact.
    stem, extension = os.path.splitext(path)
    extensions = [extension, ".bin"] if extension == ".xml" else [extension]
    return {extension: stem + extension for extension in extensions}


def _check_values(path: str, content: Mapping[str, Any]) -> None:
    problems = []
    if not all(isinstance(name, str) for name in content["class_names"]):
        problems.append("class_names must hold strings")
    if content["output"] not in ("softmax", "sigmoid"):
        problems.append(f"output must be 'softmax' or 'sigmoid', not {content['output']!r}")
    if len(content["image_shape"]) != 3 or not all(isinstance(size, int) for size in content["image_shape"]):
        problems.append(f"image_shape must hold three integers, not {content['image_shape']!r}")
    if problems:
        raise ValueError(f"The model card {path!r} is damaged: {'; '.join(problems)}. {EXPORT_AGAIN}")


def _check_files(path: str, expected: Mapping[str, Any], parts: Mapping[str, str]) -> None:
    """Compare sizes and hashes of an artifact's files with those in its card."""
    missing = [name for name in expected if not os.path.isfile(parts.get(name, ""))]
    if missing:
        raise FileNotFoundError(f"The artifact of the model card {path!r} lacks its file {missing[0]!r}.")
    different = [name for name in parts if name not in expected or not _is_same(parts[name], expected[name])]
    if different:
        raise ValueError(
            f"The model card {path!r} does not belong to {parts[different[0]]!r}: size or SHA-256 differ, so the file "
            f"was replaced or damaged after the export. {EXPORT_AGAIN}"
        )


def _is_same(file: str, entry: Any) -> bool:
    if not isinstance(entry, dict) or entry.get("bytes") != os.path.getsize(file):
        return False
    return entry.get("sha256") == _io.sha256(file)
