"""Selection among the more than 50,000 checkpoints of "How to train your ViT?" by their index.

References:
    - [How to train your ViT?](https://arxiv.org/abs/2106.10270)
"""

import csv
import math
import os
from typing import Any

from keras_vit import _checks
from keras_vit.zoo.cache import fetch

INDEX = "vit_models/augreg/index.csv"


def read_index(path: str | os.PathLike[str] | None = None) -> list[dict[str, str]]:
    """Return the rows of the index: one per fine-tuning of each pretrained checkpoint.

    Args:
        path: The file `index.csv`; None to fetch it from its owners.

    Raises:
        OSError: If it cannot be fetched.
        ValueError: If columns are missing.

    Example:
    >>> rows = read_index()  # downloaded once  # doctest: +SKIP
    """
    with open(fetch(INDEX) if path is None else path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = {"name", "ds", "filename", "adapt_filename", "final_val"} - set(reader.fieldnames or ())
        if missing:
            raise ValueError(f"{path or INDEX} is no AugReg index: without the columns {', '.join(sorted(missing))}.")
        return list(reader)


def select_augreg(
    model: str,
    by: str = "final_val",
    index: str | os.PathLike[str] | list[dict[str, str]] | None = None,
    **columns: Any,
) -> dict[str, str]:
    """Return the row of the index with the best value in a column.

    Without further arguments, this is the pretrained checkpoint that the reference takes: the best of those pretrained
    on ImageNet-21k, by their final validation accuracy. `adapt_ds="imagenet2012", adapt_resolution=384,
    by="adapt_final_val"` selects a fine-tuned one.

    Args:
        model: Name of the model, as in `keras_vit.list_models()` (`"ViT-B/16"`) or in the index (`"B/16"`).
        by: The column to maximize.
        index: The path of `index.csv`, its rows, or None to fetch it.
        **columns: Values that other columns must have; `ds="i21k"` unless given.

    Returns:
        The row; its `filename` (pretrained) and `adapt_filename` (fine-tuned) are names that `weights` takes.

    Raises:
        ValueError: If no row agrees, or a column does not exist.

    Example:
    >>> rows = [
    ...     {"name": "B/16", "ds": "i21k", "final_val": "0.47", "filename": "B_16-i21k-300ep"},
    ...     {"name": "B/16", "ds": "i21k", "final_val": "0.49", "filename": "B_16-i21k-30ep"},
    ... ]
    >>> select_augreg("ViT-B/16", index=rows)["filename"]
    'B_16-i21k-30ep'
    """
    rows = index if isinstance(index, list) else read_index(index)
    known = list(rows[0]) if rows else []
    for name in (by, *columns):
        if name not in known:
            raise ValueError(
                f"The index has no column {name!r}.{_checks.nearest(name, known)} It has {', '.join(known)}."
            )
    wanted = {"ds": "i21k", **columns}
    # The reference compares the beginning of the file's name, "R26_S_32" of "R26+ViT-S/32".
    stem = model.replace("ViT-", "").replace("+", "_").replace("/", "_")
    matching = [
        row
        for row in rows
        if row["filename"].split("-")[0] == stem and all(_equal(row[name], value) for name, value in wanted.items())
    ]
    scored = [(score, row) for row in matching if not math.isnan(score := _number(row[by]))]
    if not scored:
        names = sorted({row["filename"].split("-")[0] for row in rows})
        conditions = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
        raise ValueError(
            f"The index has no {stem} with {conditions} and a number in {by!r}. Models: {', '.join(names)}."
        )
    return max(scored, key=lambda item: item[0])[1]  # the first of equals, as argmax takes


def _equal(cell: str, value: Any) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _number(cell) == float(value)
    return cell == str(value)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
