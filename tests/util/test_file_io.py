"""Atomic writes: readers see the old or the new content, and failures leave no files."""

import contextlib
import io
import os
import pathlib
import signal
import stat
import time

import pytest

from keras_vit.util import file_io, formatting, image_files
from tests import forked
from tests.faulty_disk import FaultyDisk


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path):
    path = tmp_path / "a.txt"
    file_io.write_text(path, "old")
    with pytest.raises(OSError, match="full"), file_io.atomic_file(path) as temporary:
        pathlib.Path(temporary).write_text("half")
        raise OSError("disk full")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_the_temporary_name_keeps_the_extension(tmp_path):
    with file_io.atomic_file(tmp_path / "model.keras") as temporary:
        assert temporary.endswith(".keras")


def test_permissions_follow_the_umask_or_the_existing_file(tmp_path):
    old = os.umask(0o027)
    try:
        file_io.write_text(tmp_path / "new", "")
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(tmp_path / "new").st_mode) == 0o640
    os.chmod(tmp_path / "new", 0o600)
    file_io.write_text(tmp_path / "new", "again")
    assert stat.S_IMODE(os.stat(tmp_path / "new").st_mode) == 0o600


def test_a_link_stays_a_link(tmp_path):
    file_io.write_text(tmp_path / "target", "old")
    os.symlink(tmp_path / "target", tmp_path / "link")
    file_io.write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_byte_order_mark_is_not_part_of_a_text(mark, tmp_path):
    (tmp_path / "a").write_text(mark + '{"é": 1}\n{"b": 2}\n\n', encoding="utf-8")
    assert file_io.read_lines(tmp_path / "a") == ['{"é": 1}', '{"b": 2}']
    assert file_io.read_json_lines(tmp_path / "a") == ([{"é": 1}, {"b": 2}], 0)
    (tmp_path / "b").write_text(mark + '{"é": 1}', encoding="utf-8")
    assert file_io.read_json(tmp_path / "b") == {"é": 1}


def test_a_text_that_is_not_utf_8_is_reported_with_its_line(tmp_path):
    (tmp_path / "a").write_bytes('{"a": 1,\n"é": 2}'.encode("latin-1"))
    for read in (file_io.read_json, file_io.read_lines):
        with pytest.raises(ValueError, match=r"a must be UTF-8. Line 2 .*xe9"):
            read(tmp_path / "a")


@pytest.mark.slow
def test_a_killed_writer_leaves_the_old_file_and_the_next_write_cleans_up(tmp_path):
    file_io.write_text(tmp_path / "a", "old")
    code = (
        "import os, signal, sys\nfrom keras_vit.util import file_io\n"
        "with file_io.atomic_file(sys.argv[1]) as name:\n"
        "    open(name, 'w').write('half')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert forked.run("-c", code, tmp_path / "a")[0] == -signal.SIGKILL
    assert (tmp_path / "a").read_text() == "old"
    (leftover,) = [name for name in os.listdir(tmp_path) if name != "a"]
    hours_ago = time.time() - 7200
    os.utime(tmp_path / leftover, (hours_ago, hours_ago))
    file_io.write_text(tmp_path / "a", "new")
    assert os.listdir(tmp_path) == ["a"]


def test_drafts_are_removed_after_an_hour(tmp_path):
    """Those of killed processes: a younger draft may belong to a process that still writes it."""
    folder = tmp_path / "a[1]"
    for name, minutes in (("old", 61), ("young", 59)):
        (folder / f".writing-{name}").mkdir(parents=True)
        (folder / f".writing-{name}" / "x").write_text("half")
        (folder / f".writing-{name}.txt").write_text("half")
        for draft in (folder / f".writing-{name}", folder / f".writing-{name}.txt"):
            os.utime(draft, (time.time() - 60 * minutes,) * 2)
    file_io.write_text(folder / "new", "text")
    assert sorted(os.listdir(folder)) == [".writing-young", ".writing-young.txt", "new"]


def test_directories_are_written_atomically(tmp_path):
    with pytest.raises(RuntimeError), file_io.atomic_directory(tmp_path / "d") as temporary:
        open(os.path.join(temporary, "x"), "w").close()
        raise RuntimeError
    assert os.listdir(tmp_path) == []
    with file_io.atomic_directory(tmp_path / "d") as temporary:
        open(os.path.join(temporary, "x"), "w").close()
    assert os.listdir(tmp_path / "d") == ["x"]
    with pytest.raises(FileExistsError), file_io.atomic_directory(tmp_path / "d"):
        pass
    assert os.listdir(tmp_path) == ["d"]


def test_damaged_json_is_named_and_damaged_lines_are_counted(tmp_path):
    path = tmp_path / "a.json"
    for content in (b"{", b"\xff", b"[" * 100_000, b"[1]"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="a.json"):
            file_io.read_json(path)
    path.write_bytes(b'{"step": 1}\n[1]\n\xff\xfe\n{"step"')
    assert file_io.read_json_lines(path) == ([{"step": 1}], 3)


def test_markdown_table_aligns_and_escapes():
    assert formatting.markdown_table(["a", "n:"], [["x|y", 1], [None, 2]]) == (
        "| a | n |\n|---|---:|\n| x\\|y | 1 |\n| – | 2 |"
    )


def test_a_draft_is_removed_and_the_published_version_is_kept(tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("theirs")
    with pytest.raises(OSError, match="full"), file_io.draft_directory(tmp_path / "deep" / "a.txt") as draft:
        for name in ("a.txt", "unpublished"):
            pathlib.Path(draft, name).write_text("new")
        pathlib.Path(draft, "tree").mkdir()
        file_io.move_file(os.path.join(draft, "a.txt"), tmp_path / "deep" / "a.txt")
        file_io.move_directory(os.path.join(draft, "tree"), tmp_path / "deep" / "tree")
        with pytest.raises(FileExistsError, match="used"):
            file_io.move_directory(draft, tmp_path / "used")
        raise OSError("disk full")
    assert sorted(os.listdir(tmp_path / "deep")) == ["a.txt", "tree"]
    assert (tmp_path / "used" / "file").read_text() == "theirs"


@pytest.fixture
def images(tmp_path, monkeypatch):
    """A working directory with images and other files."""
    for name in ("b.png", "a.png", "c[1].jpg", "deep/d.PNG", "deep/deeper/e.webp", "deep/.f.png", "deep/notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "empty").mkdir()
    (tmp_path / "deep" / "loop").symlink_to(tmp_path / "deep")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["*.png", "b.png", "c[1].jpg", "nowhere*.gif"], ["a.png", "b.png", "c[1].jpg", "nowhere*.gif"]),
        (["deep/notes.md"], ["deep/notes.md"]),
        (["deep", "empty", "a.png"], ["deep/d.PNG", "deep/deeper/e.webp", "a.png"]),
        (["deep/"], ["deep/d.PNG", "deep/deeper/e.webp"]),
        (["d*p"], ["deep/d.PNG", "deep/deeper/e.webp"]),
        (["[abd]*"], ["a.png", "b.png"]),  # the files that match, and not those in the folder that matches, too
        (["a.png", "b.png", "a.png", "a*"], ["a.png", "b.png", "a.png"]),
        (["LIST.TXT"], ["b.png", "deep/deeper/e.webp", "[ab].png", " with space.png", "b.png"]),
        (["list.txt"], ["b.png", "deep/deeper/e.webp", "[ab].png", " with space.png", "b.png"]),
        (["a.png", "-"], ["a.png", "b.png", "deep/deeper/e.webp", "[ab].png", " with space.png", "b.png"]),
    ],
)
def test_images_are_found_by_path_pattern_folder_and_list(given, expected, images, monkeypatch):
    """Lines of lists are not patterns; links back into a folder are not followed."""
    text = "b.png\r\n\ndeep/deeper\n[ab].png\n with space.png\nb.png"
    pathlib.Path(given[0] if given[0].lower() == "list.txt" else "list.txt").write_text(text, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert image_files.find(given) == expected


def test_files_of_every_extension_are_images(tmp_path, caplog):
    names = ["a.jpg", "b.jpeg", "c.png", "d.bmp", "e.webp", "f.jpe", "g.jfif", "h.JPG"]
    for name in (*names, "i.gif", "j.heic", "k.gif", "j.jpg.txt", "jpg"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "@eaDir").mkdir()
    assert image_files.find([str(tmp_path)]) == [str(tmp_path / name) for name in names]
    assert "2 .gif, 1 .heic, 1 .txt, 1 without an ending, the folder @eaDir" in caplog.text


def test_writing_to_a_url_is_refused(tmp_path, monkeypatch):
    """`--workdir=gs://bucket/run` made a local folder `gs:`, and the run was lost with its machine."""
    monkeypatch.chdir(tmp_path)
    addresses = ["gs://bucket/run", "s3://bucket/run", "file:///tmp/run", pathlib.Path("gs://bucket/run")]
    for path in addresses:
        for write in (file_io.atomic_file, file_io.atomic_directory, file_io.draft_directory):
            with pytest.raises(ValueError, match="bucket/run|tmp/run"), write(path):
                pass
        for refuse in (file_io.make_directory, file_io.check_writable, lambda path: file_io.write_json(path, {})):
            with pytest.raises(ValueError, match="Received: '(gs|s3|file):/"):
                refuse(path)
    assert os.listdir(tmp_path) == []


def test_local_paths_are_written_directly(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("runs/mine", tmp_path / "a:b", "C:/runs", "x/gs://y", "tfrecord:x"):
        file_io.check_writable(path)
    file_io.check_writable("ram://a", ["ram"])
    file_io.write_text("runs/a:b", "text")
    assert pathlib.Path("runs/a:b").read_text() == "text"


def test_remote_paths_are_recognized():
    remote = ["gs://bucket/a", "s3://b", "hf://owner/name", "file:///a", "/a", "a:b", "C:/a"]
    assert [file_io.is_remote(path) for path in remote] == [True] * 3 + [False] * 4


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (["0.png", "0*.png"], FileNotFoundError, r"0\.png, 0\*\.png"),
        (["empty"], FileNotFoundError, r"empty.*\.jpg"),
        (["list.txt"], ValueError, r"list\.txt.*no lines"),
    ],
)
def test_missing_images_are_reported(given, error, message, images):
    pathlib.Path("list.txt").write_text(" \n\n", encoding="utf-8")
    with pytest.raises(error, match=message):
        image_files.find(given)


def test_sha256_of_several_files_covers_names_and_contents(tmp_path):
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_bytes(b"abc")
    of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of FIPS 180-4
    assert file_io.joint_sha256([paths[0]]) == of_abc
    found = {file_io.joint_sha256(paths)}
    paths[1].write_bytes(b"abd")
    found.add(file_io.joint_sha256(paths))
    found.add(file_io.joint_sha256([paths[0].rename(tmp_path / "c"), paths[1]]))
    assert len(found | {of_abc}) == 4


@pytest.mark.parametrize("write", ["file", "directory", "replaced file"])
def test_written_files_survive_a_power_failure(write, tmp_path, monkeypatch):
    path = tmp_path / "a"
    if write == "replaced file":
        path.write_text("old")
    disk = FaultyDisk(monkeypatch, tmp_path)
    if write == "directory":
        with file_io.atomic_directory(path) as temporary:
            pathlib.Path(temporary, "b").mkdir()
            pathlib.Path(temporary, "b", "c").write_text("new")
        path = path / "b" / "c"
    else:
        file_io.write_text(path, "new")
    disk.lose_power()
    assert path.read_text() == "new"


@pytest.mark.parametrize("fails_for", [stat.S_ISREG, stat.S_ISDIR])
def test_only_a_directory_may_fail_to_be_synced(fails_for, tmp_path, monkeypatch):
    """Some network file systems cannot sync a directory. A file that is not on the disk does not replace another."""
    (tmp_path / "a").write_text("old")

    def fsync(handle):
        if fails_for(os.fstat(handle).st_mode):
            raise OSError("not on the disk")

    monkeypatch.setattr(os, "fsync", fsync)
    is_file = fails_for is stat.S_ISREG
    with pytest.raises(OSError, match="not on the disk") if is_file else contextlib.nullcontext():
        file_io.write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == ("old" if is_file else "new")


@pytest.mark.parametrize("synced, expected", [(True, "old"), (False, "")])
def test_simulated_power_failure_loses_unsynced_names_and_contents(synced, expected, tmp_path, monkeypatch):
    """The tests above can fail: an atomic write without any sync."""
    (tmp_path / "a").write_text("old")
    disk = FaultyDisk(monkeypatch, tmp_path)
    if synced:
        file_io._sync(tmp_path / "a")
    (tmp_path / "b").write_text("new")
    os.replace(tmp_path / "b", tmp_path / "a")
    if not synced:
        file_io._sync(tmp_path)  # the name without the content
    disk.lose_power()
    assert (tmp_path / "a").read_text() == expected
