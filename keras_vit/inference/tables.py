"""Tables of predictions with one row per image, in files that a later call can continue."""

import contextlib
import csv
import hashlib
import itertools
import json
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator
from typing import Any

from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.predictor import Prediction
from keras_vit.util import file_io, formatting, locks, storage
from keras_vit.util.values import shortest

EXTENSIONS = (".csv", ".jsonl", ".parquet")
Row = dict[str, Any]  # column -> text, number or None
_ROW_GROUP = 65_536  # rows
_WRITE_EVERY = 30.0  # seconds between writes, but at least 20 times the duration of a write


class PredictionTable:
    """Table whose rows are in a temporary database on disk, and are written to the file every half minute.

    See `opened`. SQLite stores the database in `SQLITE_TMPDIR` or /var/tmp and removes it.
    """

    def __init__(self, path: str):
        self.path, self._columns, self._next_write = path, dict[str, type](), 0.0
        self._rows = sqlite3.connect("", isolation_level=None)
        self._rows.execute("CREATE TABLE rows (path TEXT PRIMARY KEY, uncertainty REAL, row TEXT)")
        self._rows.execute("CREATE TABLE positions (id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT)")
        self._rows.execute("CREATE INDEX paths ON positions (path)")
        self._last_old = 0  # the last position of a row of the file
        for row in self._found():
            if not {"path", "error", "model"} <= row.keys():
                raise _foreign(path, "a row without path, error and model")

    def begin(self, card: ModelCard, top_k: int, uncertain_first: bool = False) -> None:
        """Start or continue the table for a model. Images that an earlier call could not read have no row.

        The file contains the rows of other images first, then a row for each image passed to `needs`, in the same
        order. With `uncertain_first`, all rows are sorted by uncertainty instead.

        Raises:
            ValueError: If the file has rows of another model, or other columns.
        """
        columns, self._model = columns_of(card, top_k), model_key(card)
        self._card, self._uncertain_first = card, uncertain_first
        for row in self._found():
            if row["model"] != self._model:
                raise _foreign(self.path, f"a cut row, or predictions of another model (model={row['model']})")
            if list(row) != list(columns):
                names = sorted(map(str, row.keys() ^ columns.keys()))
                raise _foreign(self.path, f"other columns ({', '.join(names[:5]) or 'in another order'})")
            if not row["error"]:
                values = ((name, kind, row[name]) for name, kind in columns.items())
                try:
                    old = {name: None if value in (None, "") else kind(value) for name, kind, value in values}
                except (TypeError, ValueError, OverflowError) as error:
                    raise _foreign(self.path, f"a row with a wrong number ({formatting.one_line(error)})") from error
                self._put(old)
                self._last_old = self._add(str(row["path"]))
        self._columns = columns

    def known(self, path: str) -> Row | None:
        """Return the row of an image, or None."""
        found = self._rows.execute("SELECT row FROM rows WHERE path = ?", (path,)).fetchone()
        return dict(zip(self._columns, json.loads(found[0]), strict=True)) if found else None

    def needs(self, path: str) -> bool:
        """Assign the image the next position in the file, and return whether it must be predicted."""
        placed = self._rows.execute("SELECT max(id) FROM positions WHERE path = ?", (path,)).fetchone()[0] or 0
        self._rows.execute("DELETE FROM positions WHERE path = ? AND id <= ?", (path, self._last_old))
        self._add(path)
        return placed <= self._last_old and self.known(path) is None

    def add(self, found: Prediction) -> None:
        """Add the row of a prediction of an image that `needs` placed."""
        self._put(row_of(found, self._card, self._columns, self._model))
        if time.monotonic() > self._next_write:
            self.write()

    def write(self) -> None:
        """Replace the file atomically. Before `begin`, nothing is written."""
        if not self._columns:
            return
        start = time.monotonic()
        order = "uncertainty IS NULL, uncertainty DESC, id" if self._uncertain_first else "id"
        rows = self._rows.execute(f"SELECT row FROM positions JOIN rows USING (path) ORDER BY {order}")
        with file_io.atomic_file(self.path) as temporary:
            extension, entries = os.path.splitext(self.path)[1], (json.loads(row) for (row,) in rows)
            write_rows(temporary, extension, self._columns, entries)
        storage.upload(self.path, growing=True)
        end = time.monotonic()
        self._next_write = end + max(_WRITE_EVERY, 20 * (end - start))

    def _found(self) -> Iterator[Row]:
        """Yield the rows of the file."""
        return _read(self.path) if os.path.exists(self.path) else iter(())

    def _put(self, row: Row) -> None:
        doubt = row["uncertainty"] if self._card.kind.has_probabilities else None
        values = (row["path"], doubt, json.dumps(list(row.values())))
        self._rows.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", values)

    def _add(self, path: str) -> int:
        return self._rows.execute("INSERT INTO positions (path) VALUES (?)", (path,)).lastrowid or 0


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


def row_of(found: Prediction, card: ModelCard, columns: Iterable[str], model: str) -> Row:
    """Return the row of a prediction. `columns` are the result of `columns_of`, `model` of `model_key`."""
    row: Row = dict.fromkeys(columns)
    row |= {"path": found.name, "error": found.error or None, "model": model}
    parts = [(name, shortest(number)) for name, number in found.top]
    if card.kind.has_probabilities and parts:
        numbers = [*(entry for pair in parts for entry in pair), shortest(found.uncertainty)]
        row |= dict(zip(list(row)[1:-2], numbers, strict=True))
    elif parts:
        row |= dict.fromkeys(list(row)[1:-2], 0.0) | dict(parts)  # a mask may lack some classes
    return row


def model_key(card: ModelCard) -> str:
    """Return a key that identifies the weights, the preprocessing and the names of a model."""
    about = (card.sha256, card.preprocess, card.output, card.names, card.image_shape)
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:12]


def check_name(path: str) -> bool:
    """Return True for a name that is valid UTF-8. Raise an error for another name."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"Names in a table are UTF-8. Received: {path!r}. Rename the file.") from error
    return True


def _read(path: str) -> Iterator[Row]:
    """Yield the rows of a table."""
    try:
        if path.endswith(".parquet"):
            with file_io.import_pyarrow().parquet.ParquetFile(path) as file:
                for batch in file.iter_batches():
                    yield from batch.to_pylist()
        elif path.endswith(".csv"):
            with open(path, encoding="utf-8-sig", newline="") as file:
                lines = (
                    [file_io.unescape_formula(text) for text in line] for line in csv.reader(file, strict=True) if line
                )
                names = next(lines, [])
                yield from (dict(itertools.zip_longest(names, line)) for line in lines)
        else:
            with open(path, "rb") as file:
                yield from (_json_object(line) for line in file if line.strip())
    except (ValueError, RecursionError, csv.Error) as error:
        raise _foreign(path, f"a file that cannot be read ({formatting.one_line(error)})") from error


def _json_object(line: bytes) -> Row:
    row = json.loads(line.decode("utf-8-sig"))
    if not isinstance(row, dict):
        raise ValueError(f"a line is not a JSON object: {line[:40]!r}")
    return row


def write_rows(path: str, extension: str, columns: dict[str, type], rows: Iterator[list]) -> None:
    """Write a table in the format of the extension. `columns` has the type of each column: str or float."""
    if extension == ".parquet":
        pyarrow = file_io.import_pyarrow()
        kinds = {str: pyarrow.string(), float: pyarrow.float64()}
        schema = pyarrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
        with pyarrow.parquet.ParquetWriter(path, schema) as writer:
            while group := list(itertools.islice(rows, _ROW_GROUP)):
                writer.write_table(pyarrow.table(list(map(list, zip(*group, strict=True))), schema=schema))
        return
    with open(path, "w", encoding="utf-8", newline="") as file:
        if extension == ".jsonl":
            named = (dict(zip(columns, row, strict=True)) for row in rows)
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in named)
            return
        file.writelines(",".join(map(_field, line)) + "\n" for line in itertools.chain([columns], rows))


def _field(value: str | float | None) -> str:
    """Return a field of a CSV file. The csv module does not quote a carriage return if lines end without it."""
    text = file_io.escape_formula(value) if isinstance(value, str) else "" if value is None else str(value)
    return '"' + text.replace('"', '""') + '"' if re.search(r'[",\r\n]', text) else text


def _foreign(path: str, received: str) -> ValueError:
    return ValueError(
        f"{path!r} must be a table of predictions of the same model. Received: {received}. Pass another --output, or "
        "remove the file."
    )
