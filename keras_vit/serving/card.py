"""The model card: what an artefact is, as JSON beside it, for programs, and as Markdown, for people."""

import json
import os

FILE_NAME = "model_card.json"
MARKDOWN_NAME = "model_card.md"
REQUIRED = ("class_names", "preprocess", "output", "image_shape")


def make(
    class_names: tuple[str, ...],
    preprocess: str,
    output: str,
    image_shape: tuple[int, int, int],
    **details,
) -> dict:
    """Describes a classifier.

    Args:
        class_names: One label for each class.
        preprocess: The preprocessing string.
        output: "softmax" or "sigmoid".
        image_shape: What preprocessing returns, `(H, W, C)`.
        **details: Anything else that JSON holds: recipe, data, metrics, sizes, hashes.

    Returns:
        The card.
    """
    return {
        "class_names": list(class_names),
        "preprocess": preprocess,
        "output": output,
        "image_shape": list(image_shape),
        **details,
    }


def to_markdown(content: dict) -> str:
    """The card for people."""
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
    lines = ["# Model card", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {_cell(value)} |" for key, value in rows.items() if value is not None]
    return "\n".join(lines) + "\n"


def _cell(value):
    return str(value).replace("|", "\\|").replace("\n", " ")


def read(path: str) -> dict:
    """Reads a card.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it lacks what is needed to use the artefact.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"Expected the model card {path!r}, which every export writes: it holds the labels and the preprocessing."
        )
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    missing = [name for name in REQUIRED if name not in content]
    if missing:
        raise ValueError(f"The model card {path!r} lacks {missing}.")
    return content


def write(path: str, content: dict) -> None:
    """Writes a card through a temporary file."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_text(path: str, text: str) -> None:
    """Writes a text file through a temporary one, so that it is never seen half written."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    temporary = f"{path}.{os.getpid()}.unfinished"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


def beside(path: str) -> str:
    """Where the card of a single-file artefact lies: `model.tflite` -> `model.json`."""
    return os.path.splitext(path)[0] + ".json"


def labels_beside(path: str) -> str:
    """Where the labels of a single-file artefact lie: `model.tflite` -> `model.labels.txt`."""
    return os.path.splitext(path)[0] + ".labels.txt"
