"""Files in buckets: local copies, uploads, kills during uploads and downloads, and leases of URLs."""

import contextlib
import itertools
import json
import os
import pathlib
import random
import re
import sys
import threading
import time

import pytest

from keras_vit.util import bucket_lease, file_io, locks, storage
from tests.object_store import Killed, ObjectStore, store  # noqa: F401  a fixture

RUN = "s3://bucket/run"


def objects():
    """The objects of the store with their contents."""
    paths = (path for path in ObjectStore.root.rglob("*") if path.is_file())
    return {path.relative_to(ObjectStore.root).as_posix(): path.read_text() for path in paths}


def write(folder, **texts):
    for name, text in texts.items():
        path = pathlib.Path(folder, name.replace("__", "/").replace("_", "."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def save(folder, step):
    """Write a checkpoint as `CheckpointStore` does: arrays, manifest, then the end of the older one."""
    path = pathlib.Path(folder, "checkpoints")
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{step}.data").write_text(f"arrays of {step}")
    os.utime(path / f"{step}.data", ns=(step, step))
    (path / f"{step}.json").write_text(f"arrays of {step}")
    os.utime(path / f"{step}.json", ns=(step, step))
    for old in sorted(path.glob("*"), key=lambda old: old.suffix != ".json"):
        if int(old.stem) < step:
            old.unlink()


def newest(folder):
    """The newest checkpoint with a manifest, which must be complete."""
    manifests = sorted(pathlib.Path(folder, "checkpoints").glob("*.json"), key=lambda path: int(path.stem))
    if not manifests:
        return None
    assert manifests[-1].with_suffix(".data").read_text() == manifests[-1].read_text()
    return int(manifests[-1].stem)


def test_changed_files_are_uploaded_and_read_on_another_machine(store):  # noqa: F811
    """Only changed files are uploaded and downloaded, without hidden files; removed files are also removed remotely."""
    with storage.written(RUN) as folder:
        write(folder, a_txt="a", deep__b_txt="b", _lock="here")
        storage.upload(folder + "/deep")
        store.log.clear()
        write(folder, a_txt="other")
        os.unlink(f"{folder}/deep/b.txt")
    assert store.log == ["put bucket/run/a.txt", "rm bucket/run/deep/b.txt", "rm bucket/run.lock-owner"]
    assert objects() == {"bucket/run/a.txt": "other"}
    store.machine("second")
    place = storage.fetched(RUN)
    assert pathlib.Path(place, "a.txt").read_text() == "other" and "second" in place
    store.log.clear()
    assert storage.fetched(RUN + "/") == place and store.log == []
    store.machine("first")
    with storage.written(RUN) as folder:
        write(folder, a_txt="again")
    store.machine("second")
    write(place, **{"log-1_txt": "of a worker"})
    assert pathlib.Path(storage.fetched(RUN), "a.txt").read_text() == "again"
    assert sorted(os.listdir(place)) == ["a.txt", "log-1.txt"]


def test_manifest_is_deleted_before_its_arrays(store):  # noqa: F811
    with storage.written(RUN) as folder:
        save(folder, 1)
    with storage.written(RUN) as folder:
        save(folder, 2)
    removed = [line for line in store.log if line.startswith("rm bucket/run/")]
    assert removed == ["rm bucket/run/checkpoints/1.json", "rm bucket/run/checkpoints/1.data"]


@pytest.mark.parametrize("uploads", range(1, 7))
def test_kill_during_any_upload_leaves_a_complete_checkpoint(uploads, store):  # noqa: F811
    """The manifest follows its arrays, whatever the times of both, and the older checkpoint goes last."""
    with storage.written(RUN) as folder:
        save(folder, 1)
        write(folder, log_txt="1")
    with pytest.raises(Killed), storage.written(RUN) as folder:
        assert newest(folder) == 1
        left = itertools.count(1)
        store.ends = staticmethod(lambda name: next(left) == uploads)
        for step in (2, 3):
            save(folder, step)
            write(folder, log_txt=f"{step}")
            storage.upload(folder)
    store.restart()
    store.machine("second")
    os.unlink(ObjectStore.root / "bucket" / "run.lock-owner")
    with storage.written(RUN) as folder:
        assert newest(folder) == (1 if uploads < 4 else 2)
        save(folder, 4)
    assert newest(ObjectStore.root / "bucket" / "run") == 4


def moved():
    """The contents of the files that were moved because the bucket had changed as well."""
    place = pathlib.Path(file_io.cache_directory(), "buckets", "not-uploaded")
    return sorted(path.read_text() for path in place.rglob("*") if path.is_file())


@pytest.mark.parametrize("how", ["fails", "killed before", "killed during", "killed after"])
@pytest.mark.parametrize("address", [RUN, "s3://bucket/table.csv"])
def test_files_that_were_not_uploaded_are_kept(address, how, store, monkeypatch):  # noqa: F811
    """A restart deleted these files, although the error recommended it. It does not wait for the killed process."""
    for rows in ("1", "1, 2", "1, 2, 3"):
        with contextlib.ExitStack() as stack:
            if rows == "1, 2":
                caught = stack.enter_context(pytest.raises((OSError, Killed)))
                patch = stack.enter_context(pytest.MonkeyPatch.context())
            path = pathlib.Path(stack.enter_context(storage.written(address)))
            file = path / "rows.txt" if address == RUN else path
            assert not file.exists() if rows == "1" else file.read_text() == rows[:-3]
            write(file.parent, **{file.name: "", "table.csv.json": rows})
            file.write_text(rows)
            if rows == "1, 2":
                store.is_full, store.is_dead = how == "fails", how == "killed before"
                store.ends = staticmethod(lambda name: how == "killed during" and name.endswith(".json"))
                if how == "killed after":
                    patch.setattr(storage._Copy, "_write_record", store.kill)
        store.restart()
        if address == RUN:
            write(store.root / "bucket" / "run", note_txt="by hand")
    assert objects()[f"bucket/{file.relative_to(path.parent)}"] == "1, 2, 3"
    assert len(objects()) == 2 + (address == RUN) and not moved()
    if how == "fails":
        assert os.path.isdir(re.search(r"stay in (\S+) on this machine", str(caught.value))[1])


@pytest.mark.parametrize("is_other", [True, False])
def test_changes_of_two_machines_are_both_kept(is_other, store, monkeypatch, caplog):  # noqa: F811
    """The files of the machine that was killed first are moved, all of them, and the others are continued."""
    monkeypatch.setattr(locks, "SILENCE", 0)
    with pytest.raises(Killed), storage.written(RUN) as folder:
        write(folder, a_txt="first", b_txt="first", both__c_txt="first")
        storage.upload(folder)
        write(folder, a_txt="first, again", both__d_txt="new")
        store.is_dead = True
    store.restart()
    store.machine("second")
    with storage.written(RUN) as folder:
        if is_other:
            write(folder, a_txt="second")
            os.unlink(f"{folder}/both/c.txt")
    store.machine("first")
    with storage.written(RUN) as folder:
        names = {path.name: path.read_text() for path in pathlib.Path(folder).rglob("*.txt")}
    if is_other:
        assert names == {"a.txt": "second", "b.txt": "first"} and moved() == ["first, again", "new"]
        assert "not-uploaded" in caplog.text and "a.txt" in caplog.text
    else:
        assert names == {"a.txt": "first, again", "b.txt": "first", "c.txt": "first", "d.txt": "new"} and not moved()
    assert sorted(objects().values()) == sorted(names.values())


@pytest.mark.parametrize("number", range(1, 12))
def test_killed_download_is_continued(number, store, monkeypatch):  # noqa: F811
    """Whenever it comes, the next start continues it, and nothing was changed here."""
    monkeypatch.setattr(locks, "SILENCE", 0)
    for machine, text in (("first", "1"), ("second", "2")):
        store.machine(machine)
        with storage.written(RUN) as folder:
            write(folder, a_txt=text, b_txt=text)
    store.machine("first")
    store.left = number
    with contextlib.suppress(Killed), storage.written(RUN):
        pass
    store.restart()
    with storage.written(RUN) as folder:
        assert {path.read_text() for path in pathlib.Path(folder).glob("*.txt")} == {"2"}
    assert set(moved()) <= {"2"} and sorted(objects().values()) == ["2", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_killed_writers_lose_no_row(seed, store, tmp_path, monkeypatch):  # noqa: F811
    """Two machines continue a table and are killed at any operation. Each row is in the bucket or on a machine."""
    monkeypatch.setattr(locks, "SILENCE", 0)
    draws, rows, last = random.Random(seed), set(), None
    for _ in range(40):
        store.machine(machine := draws.choice(["first", "second"]))
        store.left, has_begun, before = draws.choice([None, *range(1, 80)]), False, moved()
        with contextlib.suppress(Killed), storage.written("s3://bucket/table.csv") as path:
            has_begun, table = True, pathlib.Path(path)
            for _ in range(2):
                text, row = table.read_text() if table.exists() else "", str(len(rows))
                file_io.write_text(path, f"{text}{row} ")
                rows.add(row)
                storage.upload(path)
        store.restart()
        assert moved() == before or last != machine
        last = machine if has_begun else None
        files = [path for path in tmp_path.rglob("*table.csv*") if path.is_file()]
        assert rows <= {row for path in files for row in path.read_text().split()}


def test_a_growing_output_is_uploaded_at_most_once_a_minute(store):  # noqa: F811
    """An upload that fails is repeated by a later one."""
    found = []
    with storage.written(RUN) as folder:
        for number, (is_due, is_full) in enumerate([(True, False), (False, False), (True, True), (True, False)]):
            write(folder, a_txt=f"{number}")
            store.is_full = is_full
            storage._open_copies[folder].due *= not is_due
            storage.upload(folder, growing=True)
            found.append(objects()["bucket/run/a.txt"])
    assert found == ["0", "0", "0", "3"]


def test_saved_model_pb_is_uploaded_last(store):  # noqa: F811
    with storage.written("s3://bucket/served", small=True) as folder:
        pathlib.Path(folder, "1").mkdir(parents=True)
        for name in ("saved_model.pb", "fingerprint.pb", "card.json"):
            pathlib.Path(folder, "1", name).write_text(name)
    assert [line for line in store.log if line.startswith("put bucket/served/")][-1].endswith("1/saved_model.pb")
    store.machine("second")
    with storage.written("s3://bucket/served", small=True) as folder:
        sizes = {path.name: path.stat().st_size for path in pathlib.Path(folder, "1").iterdir()}
        assert sizes["saved_model.pb"] == 0 and sizes["card.json"] > 0
        store.log.clear()
        pathlib.Path(folder, "2").mkdir()
        pathlib.Path(folder, "2", "saved_model.pb").write_text("two")
    assert store.log == ["put bucket/served/2/saved_model.pb", "rm bucket/served.lock-owner"]
    assert objects()["bucket/served/1/saved_model.pb"] == "saved_model.pb"


@pytest.mark.parametrize("name", ["ETag", "etag", "generation", "LastModified"])
def test_replaced_object_is_downloaded_again(name, store, monkeypatch):  # noqa: F811
    """Each of the names under which S3 and Google Cloud identify an object, of the same size at the same time."""
    states = {}
    info = lambda self, path, **_: {"name": path, "type": "file", "size": 1, **states}  # noqa: E731
    monkeypatch.setattr(ObjectStore, "find", lambda self, path, **_: {f"{path}/a.txt": info(self, f"{path}/a.txt")})
    for content, state in (("1", "x"), ("2", "y"), ("3", "y")):
        write(store.root / "bucket" / "run", a_txt=content)
        states[name] = state
        assert pathlib.Path(storage.fetched(RUN), "a.txt").read_text() == min(content, "2")


def test_folders_with_similar_names_are_uploaded_separately(store):  # noqa: F811
    with storage.written(RUN) as folder, storage.written(f"{RUN}2") as other:
        write(folder, a_txt="a")
        store.log.clear()
        storage.upload(other)
        assert not store.log
        storage.upload(f"{folder}/a.txt")
        assert store.log == ["put bucket/run/a.txt"]


@pytest.mark.parametrize(
    ("path", "expected"), [("s3://a/b", True), ("gs://a/b", True), ("gs://vit_models/a", False), ("hf:a/b", False)]
)
def test_bucket_urls_are_recognized(path, expected):
    assert storage.is_bucket_url(path) == expected


def test_file_is_downloaded_with_its_card_and_configuration(store):  # noqa: F811
    write(store.root / "bucket", m_tflite="model", m_tflite_json="{}", config_json="{}", other_tflite="x")
    place = pathlib.Path(storage.fetched("s3://bucket/m.tflite"))
    assert sorted(os.listdir(place.parent)) == ["config.json", "m.tflite", "m.tflite.json"]
    with storage.written("s3://bucket/new.xml", small=True) as path:
        write(os.path.dirname(path), new_xml="xml", new_bin="weights", new_xml_json="{}")
    assert {"bucket/new.xml", "bucket/new.bin", "bucket/new.xml.json"} <= objects().keys()
    assert objects()["bucket/other.tflite"] == "x"


@pytest.mark.parametrize("kind", ["read", "written"])
def test_parts_of_a_file_are_found_by_name(kind, store):  # noqa: F811
    """A copy for reading also has the configurations in the folder."""
    copy = storage._Copy("s3://bucket/a/m.safetensors", kind)
    parts = ["m.safetensors", "m.safetensors.index.json", "m-00001-of-00002.safetensors", "m_config.json", "m.bin"]
    others = ["n.safetensors", "m.txt", "m.safetensors2", "m-1.bin", ".m.safetensors.x", "m.safetensors.lock-owner"]
    others += ["b/m.bin", "b/config.json"]
    assert all(map(copy._has, parts)) and not any(map(copy._has, others))
    assert copy._has("config.json") == (kind == "read")


def test_checkpoints_are_downloaded_only_if_requested(store):  # noqa: F811
    contents = {"metrics_jsonl": "{}", "model_keras": "weights", "checkpoints__5_data": "a", "tensorboard__e": "events"}
    write(store.root / "bucket" / "run", **contents)
    sizes = []
    for options in ({"small": True}, {}, {"checkpoint": "best"}, {}):
        place = pathlib.Path(storage.fetched(RUN, **options))
        names = ("metrics.jsonl", "model.keras", "checkpoints/5.data", "tensorboard/e")
        sizes.append([(place / name).stat().st_size for name in names])
    assert sizes == [[2, 0, 0, 0], [2, 7, 0, 0], [2, 7, 1, 6], [2, 7, 1, 6]]


@pytest.mark.slow
def test_a_second_writer_is_refused(store, monkeypatch):  # noqa: F811
    """Until the first writer ends, or has not renewed its lease for a while."""
    monkeypatch.setattr(locks, "REFRESH", 0.05)
    monkeypatch.setattr(locks, "SILENCE", 0.4)
    with storage.written(RUN) as folder:
        write(folder, a_txt="first")
        message = rf"process {os.getpid()} on .* writes to {RUN}.*--workdir"
        with pytest.raises(ValueError, match=message), storage.written(RUN, "--workdir"):
            pass
        (owner,) = (path for path in (store.root / "bucket").iterdir() if "owner" in path.name)
    assert not owner.exists()
    owner.write_text(json.dumps({"process": 1, "host": "elsewhere", "key": "other"}))
    monkeypatch.setattr(locks, "SILENCE", 60)
    threading.Timer(0.1, owner.unlink).start()  # the owner ends while this process waits
    with storage.written(RUN):
        pass
    monkeypatch.setattr(locks, "SILENCE", 0.4)
    owner.write_text(json.dumps({"process": 1, "host": "elsewhere", "key": "other"}))
    with storage.written(RUN):
        assert json.loads(owner.read_text())["process"] == os.getpid()


@pytest.mark.slow
def test_other_workers_wait_for_the_writing_worker(store, monkeypatch):  # noqa: F811
    """It may have to wait until the lease of its killed predecessor expires. A running worker renews its lease."""
    monkeypatch.setattr(locks, "REFRESH", 0.05)
    monkeypatch.setattr(locks, "SILENCE", 0.4)
    monkeypatch.setattr(bucket_lease, "_PATIENCE", 0.2)
    owner, found = store.root / "bucket" / "run.lock-owner", []
    owner.write_text(json.dumps({"process": 1, "host": "elsewhere", "key": "of a killed process"}))
    with pytest.raises(OSError, match="no worker took over the URL"), storage.written(RUN, writes=False):
        pass
    monkeypatch.setattr(bucket_lease, "_PATIENCE", 10)

    def read():
        with storage.written(RUN, writes=False):
            found.append(json.loads(owner.read_text())["process"])

    readers = [threading.Thread(target=read) for _ in range(2)]
    readers[0].start()
    with storage.written(RUN):
        readers[1].start()
        for reader in readers:
            reader.join(10)
        assert found == [os.getpid()] * 2


def test_process_that_lost_its_lease_uploads_nothing(store, monkeypatch):  # noqa: F811
    with pytest.raises(OSError, match=f"{RUN}.*took over the URL"), storage.written(RUN) as folder:
        write(folder, a_txt="a")
        (store.root / "bucket" / "run.lock-owner").write_text('{"key": "other"}')
    assert objects() == {"bucket/run.lock-owner": '{"key": "other"}'}


def test_only_one_of_several_processes_acquires_the_lease(store):  # noqa: F811
    """They start at the same moment."""
    barrier, owners, refused = threading.Barrier(4), [], []

    def start():
        copy = storage._Copy(RUN, "written")
        barrier.wait()
        try:
            with copy.held("--output"):
                owners.append(copy)
                done.wait(20)
        except ValueError:
            refused.append(copy)

    done = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locks, "REFRESH", 0.05)
        threads = [threading.Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 10
        while len(owners) + len(refused) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (len(owners), len(refused)) == (1, 3)
        done.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("address", ["s3://bucket", "s3://bucket/", "s3://", "gs://bucket/a/../b", "s3://bucket//a"])
def test_url_without_a_bucket_or_a_path_is_refused(address, store):  # noqa: F811
    with pytest.raises(ValueError, match="BUCKET/NAME"):
        storage.fetched(address)


def test_missing_objects_and_packages_are_reported(store, monkeypatch):  # noqa: F811
    with pytest.raises(FileNotFoundError, match=RUN):
        storage.fetched(RUN)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ImportError, match=r"keras-vision-transformers\[buckets\]"):
        storage.fetched(RUN)
    assert storage.fetched("runs/digits") == "runs/digits"  # without the package


def test_messages_show_the_url_of_local_copies(store):  # noqa: F811
    assert file_io.shown(f"in {storage._Copy(RUN, 'read').path}/a and /b") == f"in {RUN}/a and /b"
