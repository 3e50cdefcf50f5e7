"""Tables of predictions with one row per image, in files that a later call can continue."""

import contextlib
import csv
import hashlib
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.predictor import Prediction
from keras_vit.util import file_io, formatting, locks, storage
from keras_vit.util.values import shortest

EXTENSIONS = (".csv", ".jsonl", ".parquet")
Row = dict[str, Any]  # column -> text, number or None
# Texts that a spreadsheet takes for formulas, after any apostrophes. In a CSV file they get one more apostrophe.
_FORMULA = re.compile(r"'*[=+@\t\r\n-]")
_WRITE_EVERY = 30.0  # seconds between writes, but at least 20 times the duration of a write


class PredictionTable:
    """Rows in memory, which are written to a file every half minute; see `opened`.

    Attributes:
        rows: Row of each image by its path. Images that an earlier call could not read have no row.
    """

    def __init__(self, path: str):
        self.path, self.rows, self._columns = path, dict[str, Row](), dict[str, type]()
        self._found = _read(path) if os.path.exists(path) else []
        if not all({"path", "error", "model"} <= row.keys() for row in self._found):
            raise _foreign(path, "a row without path, error and model")

    def begin(
        self, card: ModelCard, top_k: int, paths: Sequence[str] = (), uncertain_first: bool = False
    ) -> dict[str, Row]:
        """Start or continue the table for a model, and return the existing rows of `paths`.

        The file contains the rows of other images first, then a row for each of `paths` in their order, also if a path
        occurs twice. With `uncertain_first`, all rows are sorted by uncertainty instead.

        Raises:
            ValueError: If the file has rows of another model, or other columns.
        """
        columns, self._model = columns_of(card, top_k), model_key(card)
        self._is_ranked, self._uncertain_first = card.kind.has_probabilities, uncertain_first
        given = set(paths)
        self._others = [row["path"] for row in self._found if row["path"] not in given]
        self._given, self._next_write = list(paths), 0.0
        for row in self._found:
            if row["model"] != self._model:
                raise _foreign(self.path, f"a cut row, or predictions of another model (model={row['model']})")
            if list(row) != list(columns):
                names = sorted(map(str, row.keys() ^ columns.keys()))
                raise _foreign(self.path, f"other columns ({', '.join(names[:5]) or 'in another order'})")
            if not row["error"]:
                values = ((name, kind, row[name]) for name, kind in columns.items())
                self.rows[row["path"]] = {n: None if value in (None, "") else kind(value) for n, kind, value in values}
        self._columns = columns
        return {path: self.rows[path] for path in paths if path in self.rows}

    def add(self, found: Prediction) -> None:
        """Add the row of a prediction."""
        row: Row = dict.fromkeys(self._columns)
        row |= {"path": found.name, "error": found.error or None, "model": self._model}
        parts = [(name, shortest(number)) for name, number in found.parts]
        if self._is_ranked and parts:
            numbers = [*(entry for pair in parts for entry in pair), shortest(found.uncertainty)]
            row |= dict(zip(list(row)[1:-2], numbers, strict=True))
        elif parts:
            row |= dict.fromkeys(list(row)[1:-2], 0.0) | dict(parts)  # a mask may lack some classes
        self.rows[found.name] = row
        if time.monotonic() > self._next_write:
            self.write()

    def write(self) -> None:
        """Replace the file atomically. Before `begin`, nothing is written."""
        if not self._columns:
            return
        start = time.monotonic()
        added = self.rows.keys() - {*self._others, *self._given}
        order = [*self._others, *(path for path in self.rows if path in added), *self._given]
        rows = [self.rows[path] for path in order if path in self.rows]
        if self._uncertain_first:
            rows.sort(key=lambda row: 1.0 if row["uncertainty"] is None else -row["uncertainty"])
        with file_io.atomic_file(self.path) as temporary:
            write_rows(temporary, os.path.splitext(self.path)[1], self._columns, rows)
        storage.publish(self.path, growing=True)
        end = time.monotonic()
        self._next_write = end + max(_WRITE_EVERY, 20 * (end - start))


@contextlib.contextmanager
def opened(path: str) -> Iterator[PredictionTable]:
    """Open the table of `--output` for this process only, and write it at the end, even after an error."""
    lock = f"{path}.lock"
    with locks.locked(lock, "--output"):
        try:
            table = PredictionTable(path)
            try:
                yield table
            finally:
                table.write()
        finally:
            shutil.rmtree(lock, ignore_errors=True)


def is_table(path: str | None) -> bool:
    """Return whether a path has the extension of a table."""
    return (path or "").endswith(EXTENSIONS)


def columns_of(card: ModelCard, top_k: int) -> dict[str, type]:
    """Return the columns by name, with the type of their entries."""
    numbers: dict[str, type] = dict.fromkeys(card.names, float)
    if card.kind.has_probabilities:
        ranks = ("", *(f"_{rank}" for rank in range(2, min(top_k, len(card.names)) + 1)))
        numbers = {f"{name}{rank}": kind for rank in ranks for name, kind in (("label", str), ("probability", float))}
        numbers["uncertainty"] = float
    elif len(numbers) < len(card.names) or {"path", "error", "model"} & numbers.keys():
        raise ValueError(
            "The names in a table must differ from each other and from 'path', 'error' and 'model'. Received: "
            f"{', '.join(card.names)}. Print JSON with --json instead."
        )
    return {"path": str, **numbers, "error": str, "model": str}


def model_key(card: ModelCard) -> str:
    """Return a key that identifies the weights, the preprocessing and the names of a model."""
    about = (card.sha256, card.preprocess, card.output, card.names, card.image_shape)
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:12]


def check_names(paths: Iterable[str]) -> None:
    """Raise an error if a name is not valid UTF-8."""
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"Names in a table are UTF-8. Received: {path!r}. Rename the file.") from error


def _read(path: str) -> list[Row]:
    try:
        if path.endswith(".parquet"):
            return file_io.import_pyarrow().parquet.read_table(path).to_pylist()
        if path.endswith(".csv"):
            with open(path, encoding="utf-8-sig", newline="") as file:
                lines = [[_unescaped(text) for text in line] for line in csv.reader(file, strict=True) if line]
            return [dict(itertools.zip_longest(lines[0], line)) for line in lines[1:]]
        rows, damaged = file_io.read_json_lines(path)
    except (ValueError, csv.Error) as error:
        raise _foreign(path, f"a file that cannot be read ({formatting.one_line(error)})") from error
    if damaged:
        raise _foreign(path, f"{damaged} lines that are not JSON objects")
    return rows


def write_rows(path: str, extension: str, columns: dict[str, type], rows: list[Row]) -> None:
    """Write a table in the format of the extension. `columns` has the type of each column: str or float."""
    if extension == ".parquet":
        pyarrow = file_io.import_pyarrow()
        kinds = {str: pyarrow.string(), float: pyarrow.float64()}
        schema = pyarrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)
        return
    with open(path, "w", encoding="utf-8", newline="") as file:
        if extension == ".jsonl":
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            return
        file.writelines(",".join(map(_field, line)) + "\n" for line in (columns, *(row.values() for row in rows)))


def _field(value: str | float | None) -> str:
    """Return a field of a CSV file. The csv module does not quote a carriage return if lines end without it."""
    text = "'" + value if isinstance(value, str) and _FORMULA.match(value) else "" if value is None else str(value)
    return '"' + text.replace('"', '""') + '"' if re.search(r'[",\r\n]', text) else text


def _unescaped(text: str) -> str:
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def _foreign(path: str, received: str) -> ValueError:
    return ValueError(
        f"{path!r} must be a table of predictions of the same model. Received: {received}. Pass another --output, or "
        "remove the file."
    )
