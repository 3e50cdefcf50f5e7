"""Tables of predictions: columns, interrupted tables and rejected tables."""

import csv
import dataclasses
import json
import pathlib

import numpy as np
import pytest

from keras_vit.inference import Prediction, tables
from keras_vit.util import locks, storage
from keras_vit.util.values import Values
from tests import tiny
from tests.object_store import Killed, store  # noqa: F401  a fixture
from train.sorted_copies import copy_to, folder_names

CARD = tiny.card(model_sha256="1")
VALUES = Values(("age", "label"), mean=(40.0, 1.7), deviation=(10.0, 0.1))
SUFFIXES = (".csv", ".jsonl", ".parquet")
NAMES = ["a.png", "b, c.png", 'é "d".png', "e\nf.png"]
HOSTILE = ["y\rz.png", "=1+1.png", "'=1.png", "+a", "-b", "@c", "\td", "\r\ne", "''", "'f", "g\r\n", "h\\"]


def found(name, label="ape", probability=0.7, uncertainty=0.2):
    return Prediction(name, np.zeros(7), [(label, np.float32(probability)), ("bee", np.float32(0.1))], uncertainty)


def read(path):
    """The rows of a file as other programs read them."""
    if path.suffix == ".csv":
        with open(path, encoding="utf-8", newline="") as file:
            return [{key: value or None for key, value in row.items()} for row in csv.DictReader(file)]
    if path.suffix == ".jsonl":
        return list(map(json.loads, path.read_text(encoding="utf-8").split("\n")[:-1]))
    return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()


def fill(path, predictions, card=CARD, top_k=2, paths=(), **options):
    """Continue a table, and return the `paths` that it has."""
    with tables.opened(str(path)) as table:
        table.begin(card, top_k, **options)
        more = (each.name for each in predictions if each.name not in paths)
        known = [name for name in (*paths, *more) if not table.needs(name)]
        for prediction in predictions:
            table.add(prediction)
    return known


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_table_is_continued_in_the_requested_order(suffix, tmp_path):
    """Rows stay as they were, those of unreadable images are tried again, and the order is the requested one."""
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"table{suffix}"
    assert fill(path, [Prediction(NAMES[1], None, error="no image"), found(NAMES[0])]) == []
    assert [row["error"] for row in read(path)] == ["no image", None]
    assert fill(path, [found(NAMES[3]), found(NAMES[2]), found(NAMES[1], "gnu", 0.3)], paths=NAMES) == NAMES[:1]
    rows = read(path)
    assert [row["path"] for row in rows] == NAMES
    columns = ["path", "label", "probability", "label_2", "probability_2", "uncertainty", "error", "model"]
    assert all(list(row) == columns for row in rows)
    assert [str(rows[1][name]) for name in columns[1:-1]] == ["gnu", "0.3", "bee", "0.1", "0.2", "None"]
    assert [path.name for path in tmp_path.iterdir()] == [path.name]
    more = [found("x.png", uncertainty=0.9), Prediction("y.png", None, error="no image")]
    fill(path, more, uncertain_first=True)
    assert [row["path"] for row in read(path)] == ["x.png", *NAMES, "y.png"]


def test_values_and_mask_shares_are_columns(tmp_path):
    values = tiny.card("values", values=VALUES.to_dict())
    values = dataclasses.replace(values, class_names=())
    fill(tmp_path / "values.jsonl", [Prediction("a", np.zeros(2), [("age", 41.5), ("label", 2.0)])], values)
    (row,) = read(tmp_path / "values.jsonl")
    assert {name: row[name] for name in VALUES.names} == {"age": 41.5, "label": 2.0}
    masks = tiny.card("mask")
    fill(tmp_path / "masks.jsonl", [Prediction("a", np.zeros((2, 2)), [("bee", 0.75), ("ape", 0.25)])], masks)
    (row,) = read(tmp_path / "masks.jsonl")
    assert list(row)[1:4] == ["ape", "bee", "cat"] and [row[name] for name in list(row)[1:4]] == [0.25, 0.75, 0.0]
    with pytest.raises(ValueError, match="'error'"):
        tables.columns_of(dataclasses.replace(masks, class_names=("sky", "error")), 5)


def test_rows_are_written_while_the_program_runs(tmp_path, monkeypatch):
    """A killed process loses no more than the rows since the last write; an interruption loses none."""
    monkeypatch.setattr(tables, "_WRITE_EVERY", 0.0)
    path = tmp_path / "table.csv"
    with pytest.raises(KeyboardInterrupt), tables.opened(str(path)) as table:
        table.begin(CARD, 2)
        list(map(table.needs, NAMES[:2]))
        table.add(found(NAMES[0]))
        assert [row["path"] for row in read(path)] == NAMES[:1]
        monkeypatch.setattr(tables, "_WRITE_EVERY", 1e9)
        table.write()
        table.add(found(NAMES[1]))
        assert len(read(path)) == 1
        raise KeyboardInterrupt
    assert fill(path, [], paths=NAMES) == NAMES[:2]


@pytest.mark.parametrize("machine", ["first", "second"])
def test_table_in_a_bucket_is_continued_after_a_kill(machine, store, monkeypatch):  # noqa: F811
    """The process is killed before its end: this machine has all written rows, another one those of the last upload."""
    monkeypatch.setattr(tables, "_WRITE_EVERY", 0.0)
    monkeypatch.setattr(locks, "SILENCE", 0)
    with pytest.raises(Killed), storage.written("s3://bucket/t.csv") as path, tables.opened(path) as table:
        table.begin(CARD, 2)
        list(map(table.needs, NAMES[:2]))
        table.add(found(NAMES[0]))
        table.add(found(NAMES[1]))
        table.write()
        store.is_dead = True
    store.restart()
    store.machine(machine)
    with storage.written("s3://bucket/t.csv") as path:
        assert fill(pathlib.Path(path), [], paths=NAMES) == NAMES[: 2 if machine == "first" else 1]


def test_slow_writes_are_less_frequent(tmp_path, monkeypatch):
    """A write that takes 3 s is followed by one after a minute."""
    times = iter([100.0, 103.0, 163.0, 163.1, 163.1, 163.1])
    path = tmp_path / "table.csv"
    with tables.opened(str(path)) as table:
        table.begin(CARD, 2)
        with monkeypatch.context() as patched:
            patched.setattr(tables.time, "monotonic", lambda: next(times))
            table.write()
            for name, rows in zip(NAMES[:2], (0, 2), strict=True):
                table.needs(name)
                table.add(found(name))
                assert len(read(path)) == rows


def test_columns_are_limited_to_the_number_of_classes():
    assert list(tables.columns_of(CARD, 9))[-5:] == ["label_7", "probability_7", "uncertainty", "error", "model"]


def test_a_table_of_another_model_is_refused_and_unchanged(tmp_path):
    path = tmp_path / "table.csv"
    fill(path, [found(NAMES[0])])
    before = path.read_bytes()
    others = [{"model_sha256": "2"}, {"preprocess": "decode|resize(8)"}, {"class_names": ("x", *CARD.class_names[1:])}]
    others += [{"output": "sigmoid"}, {"image_shape": (8, 8, 3)}]
    for other in others:
        with pytest.raises(ValueError, match=r"table\.csv.*another model"):
            fill(path, [], dataclasses.replace(CARD, **other))
    with pytest.raises(ValueError, match=r"other columns \(label_3, probability_3\)"):
        fill(path, [], top_k=3)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"name,price\nscrew,1\n"),
        ("a.csv", b'path,error,model\n"x'),
        ("a.csv", b"\xff\xfe\n"),
        ("a.jsonl", b'{"path": 1}\n'),
        ("a.jsonl", b"[1]\n"),
        ("a.parquet", b"PAR1"),
    ],
)
def test_files_that_are_not_tables_are_refused_and_unchanged(name, content, tmp_path):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}.*must be a table"), tables.opened(str(path)):
        pass
    assert path.read_bytes() == content and len(list(tmp_path.iterdir())) == 1


def test_a_second_writer_of_the_same_table_is_refused(tmp_path):
    path = str(tmp_path / "table.csv")
    with tables.opened(path), pytest.raises(ValueError, match="writes to .*Wait"), tables.opened(path):
        pass


def test_copies_never_overwrite(tmp_path):
    """Another file of the same name gets a number; the same file is copied once."""
    target = tmp_path / "sorted"
    paths = [tmp_path / folder / "a.png" for folder in ("x", "y", "z")]
    for path, content in zip(paths, (b"1", b"2", b"1"), strict=True):
        path.parent.mkdir()
        path.write_bytes(content)
    for _ in range(2):
        for path in paths:
            copy_to(str(path), str(target))
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {"a.png": b"1", "a-2.png": b"2"}
    with pytest.raises(FileNotFoundError):
        copy_to(str(tmp_path / "gone.png"), str(target))
    assert len(list(target.iterdir())) == 2


def test_class_folders_have_valid_unique_names():
    classes = ("../up", "a/b", "a:b", ".", "", "none", "é" * 300, "\x00")
    names = folder_names(classes, "none")
    assert list(names) == list(classes) and len({name.casefold() for name in names.values()} | {"none"}) == 9
    assert not any({"/", "\\", ":", "\x00"} & set(name) or name.startswith(".") for name in names.values())
    assert all(0 < len(name.encode()) <= 210 for name in names.values())
    assert folder_names(("a ", "b")) == {"a ": "a", "b": "b"}  # Windows drops spaces at the end
    assert folder_names(("c ", "C")) == {"c ": "c-0", "C": "C-1"}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", ["probabilities", "mask"])
def test_names_round_trip(suffix, kind, tmp_path):
    """Names of files and classes are texts, in columns and as columns, and no text is a formula in a spreadsheet."""
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    card = dataclasses.replace(tiny.card(kind) if kind == "mask" else CARD, class_names=tuple(HOSTILE))
    path = tmp_path / f"table{suffix}"
    predictions = [Prediction(name, np.zeros(2), [(name, 0.5), ("+a", 0.25)], 0.5) for name in HOSTILE]
    assert fill(path, predictions, card, paths=HOSTILE) == []
    content = path.read_bytes()
    assert fill(path, [], card, paths=HOSTILE) == HOSTILE and path.read_bytes() == content
    if suffix == ".csv":
        with open(path, encoding="utf-8", newline="") as file:
            fields = [field for line in csv.reader(file) for field in line]
        assert not [field for field in fields if field[:1] in tuple("=+-@\t\r\n")]


def test_a_list_that_names_an_image_twice_has_two_rows(tmp_path):
    path, twice = tmp_path / "table.csv", [NAMES[1], NAMES[0], NAMES[1]]
    fill(path, [found(NAMES[1]), found(NAMES[0])], paths=twice)
    assert [row["path"] for row in read(path)] == twice
    fill(path, [found("x"), found(NAMES[2])], paths=[NAMES[2]])
    assert [row["path"] for row in read(path)] == [*twice, NAMES[2], "x"]
    fill(path, [], paths=twice[:1])
    assert [row["path"] for row in read(path)] == [NAMES[0], NAMES[2], "x", NAMES[1]]


@pytest.mark.parametrize("change", [{"probability": "x"}, {"uncertainty": [1]}, {"probability": 10**400}])
def test_a_row_with_a_wrong_number_is_refused(change, tmp_path):
    path = tmp_path / "table.jsonl"
    fill(path, [found(NAMES[0])])
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"table\.jsonl.*wrong number"):
        fill(path, [])


def test_truncated_table_is_refused(tmp_path):
    path = tmp_path / "table.csv"
    fill(path, [found(NAMES[0])])
    for length in (-3, -14):
        content = path.read_bytes()[:length]
        (tmp_path / "cut.csv").write_bytes(content)
        with pytest.raises(ValueError, match="cut row"):
            fill(tmp_path / "cut.csv", [])
        assert (tmp_path / "cut.csv").read_bytes() == content
