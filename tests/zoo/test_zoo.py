"""Published weights: where they are looked for, what is said when they are missing, and the classes of their heads."""

import base64
import email.message
import hashlib
import io
import os
import pathlib
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest

from keras_vit import _progress, models, zoo
from keras_vit.checkpoints import save_checkpoint
from keras_vit.zoo import cache

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test sees a real cache, mirror or network."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(cache.MIRROR_VARIABLE, raising=False)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *a, **k: pytest.fail("a download was tried"))


def place(directory, path, content=b"x"):
    target = pathlib.Path(directory, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return str(target)


def test_the_catalogue():
    entries = zoo.list_weights()
    assert len({(entry.model, entry.name) for entry in entries}) == len(entries)
    assert len({entry.path for entry in entries}) == len(entries)
    assert {entry.model for entry in entries} <= set(models.list_models())
    best = zoo.find("ViT-B/16", "augreg")
    assert (best.accuracy, best.resolution, best.classes) == (85.49, 384, 1000)
    assert best.url == (
        "https://storage.googleapis.com/vit_models/augreg/B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
        "--imagenet2012-steps_20k-lr_0.03-res_384.npz"
    )
    names = [entry.name for entry in zoo.list_weights("ViT-B/16")]
    assert {"augreg", "augreg-imagenet21k", "imagenet21k", "imagenet21k+imagenet2012", "sam"} <= set(names)
    assert {"bit-s", "bit-m"} <= {entry.name for entry in zoo.list_weights("BiT-R152x4")}
    hybrid = zoo.find("R50+ViT-B/16", "imagenet21k+imagenet2012")
    assert hybrid.url.endswith("vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz")
    with pytest.raises(ValueError, match="Did you mean 'ViT-B/16'"):
        zoo.list_weights("VIT-B/16")


def test_the_list_is_a_table():
    entries = zoo.list_weights("ViT_B16")
    assert list(entries) == list(zoo.list_weights("ViT-B/16")) != []
    header, first, *rest = str(entries).splitlines()
    assert header.split()[:5] == ["model", "weights", "size", "resolution", "accuracy"]
    assert first.split()[:4] == ["ViT-B/16", "augreg", "384", "85.49"] and len(rest) == len(entries) - 1
    assert all(len(line) <= 140 for line in rest)


def test_the_table_names_project_and_paper():
    rows = {tuple(line.split()[:2]): line for line in str(zoo.list_weights()).splitlines()}
    assert rows["model", "weights"].endswith("  source")
    for model, name, source in (
        ("ViT-B/16", "augreg", "vision_transformer, arXiv:2106.10270"),
        ("R50+ViT-B/16", "imagenet21k+imagenet2012", "vision_transformer, arXiv:2010.11929"),
        ("ViT-B/32", "sam", "vision_transformer, arXiv:2106.01548"),
        ("BiT-R152x4", "bit-m", "big_transfer, arXiv:1912.11370"),
        ("BiT-R50x1", "distilled-160", "big_transfer, arXiv:2106.05237"),
    ):
        assert zoo.find(model, name).source == source
        assert rows[model, name].endswith(f"  {source}")


def test_another_padding_than_that_of_the_training_is_said(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(cache.MIRROR_VARIABLE, str(tmp_path))
    arguments = dict(block_sizes=(1, 1), image_size=32, classes=21_843)
    source = models.BiTResNet(**arguments, pool_padding="zeros")
    save_checkpoint(source, tmp_path / zoo.find("BiT-R50x1", "bit-m").path)
    with caplog.at_level("WARNING", logger="absl"):
        zoo.load_weights(source, "BiT-R50x1", "bit-m")
    assert not any("pool_padding" in record.getMessage() for record in caplog.records)
    with pytest.raises(ValueError, match="pool_padding"), caplog.at_level("WARNING", logger="absl"):
        zoo.load_weights(models.BiTResNet(**arguments), "BiT-R50x1", "bit-m")
    assert any("pool_padding='zeros'" in record.getMessage() for record in caplog.records)


def test_paths_are_taken_as_they_are(tmp_path):
    path = place(tmp_path, "mine.npz")
    assert zoo.resolve("ViT-B/16", path) == path
    with pytest.raises(FileNotFoundError, match="yours.npz"):
        zoo.resolve("ViT-B/16", tmp_path / "yours.npz")
    with pytest.raises(ValueError, match="Did you mean 'augreg'.*Published: augreg, "):
        zoo.resolve("ViT-B/16", "agreg")
    for wrong in (123, True, ["augreg"]):
        with pytest.raises(ValueError, match="`weights`"):
            zoo.resolve("ViT-B/16", wrong)


@pytest.mark.parametrize("place_in", ["vit_models/augreg/{}", "augreg/{}", "{}"])
def test_mirrors(place_in, tmp_path, monkeypatch):
    monkeypatch.setenv(cache.MIRROR_VARIABLE, str(tmp_path / "mirror"))
    entry = zoo.find("ViT-Ti/16", "augreg")
    path = place(tmp_path / "mirror", place_in.format(os.path.basename(entry.path)))
    assert zoo.resolve("ViT-Ti/16", "augreg") == path
    assert zoo.resolve("ViT-Ti/16", os.path.basename(entry.path).removesuffix(".npz")) == path
    assert zoo.resolve("ViT-Ti/16", "gs://" + entry.path) == path
    assert zoo.resolve("ViT-Ti/16", entry.url) == path


def test_a_name_of_several_files_is_not_taken_from_a_flat_mirror(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.MIRROR_VARIABLE, str(tmp_path / "mirror"))
    serve(monkeypatch, OSError("offline"))
    place(tmp_path / "mirror", "ViT-B_16.npz")
    with pytest.raises(OSError):
        zoo.resolve("ViT-B/16", "sam")
    sam = place(tmp_path / "mirror", "sam/ViT-B_16.npz")
    assert zoo.resolve("ViT-B/16", "sam") == sam


class Response(io.BytesIO):
    """An answer of the server, cut after `end` bytes."""

    def __init__(self, content, end=None, md5=None):
        super().__init__(content[:end])
        self.headers = email.message.Message()
        self.headers["Content-Length"] = str(len(content))
        self.headers["x-goog-hash"] = "crc32c=AAAAAA=="
        digest = base64.b64encode(hashlib.md5(content).digest()).decode() if md5 is None else md5
        self.headers["x-goog-hash"] = f"md5={digest}"


def serve(monkeypatch, *answers):
    """Lets the server answer one after the other; returns the list of addresses that are asked for."""
    calls, answers = [], list(answers)

    def urlopen(request, timeout):
        calls.append(request.full_url)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return calls


WHOLE = (GOLDEN / "vit_gap.npz").read_bytes()
NAMES = "ViT-S/32", "augreg-224"


def test_downloads_are_kept_and_never_half_done(tmp_path, monkeypatch):
    offline = urllib.error.URLError("no route to host")
    calls = serve(monkeypatch, offline, Response(WHOLE, end=1000), Response(WHOLE))
    entry = zoo.find(*NAMES)
    for reason in ("no route to host", "1000 of"):
        with pytest.raises(OSError, match=reason) as error:
            zoo.resolve(*NAMES)
        # What to fetch, from where, and where to put it.
        for part in (entry.url, cache.MIRROR_VARIABLE, entry.path, str(tmp_path / "home" / "keras_vit")):
            assert part in str(error.value)
        assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    path = zoo.resolve(*NAMES)
    assert pathlib.Path(path).read_bytes() == WHOLE
    assert zoo.resolve(*NAMES) == path and calls == [entry.url] * 3


@pytest.mark.parametrize(
    "answer,reason",
    [
        (Response(WHOLE, md5="AAAA"), "MD5"),
        (Response(b"<html>Log in to the guest network</html>"), "error page"),
        (Response(WHOLE[:1000]), "truncated"),
    ],
    ids=["hash", "proxy", "cut"],
)
def test_wrong_downloads_are_not_cached(answer, reason, tmp_path, monkeypatch):
    # They were put in place, and taken from there ever after.
    calls = serve(monkeypatch, answer, Response(WHOLE))
    with pytest.raises(OSError, match=reason):
        zoo.resolve(*NAMES)
    assert pathlib.Path(zoo.resolve(*NAMES)).read_bytes() == WHOLE and len(calls) == 2


def test_sizes_that_the_owners_state_are_compared(monkeypatch):
    serve(monkeypatch, Response(WHOLE))
    assert zoo.find("ViT-S/32", "augreg-imagenet21k").size_mib == 118
    with pytest.raises(OSError, match="118 MiB"):
        zoo.resolve("ViT-S/32", "augreg-imagenet21k")


def test_a_damaged_file_in_the_cache_is_fetched_again_once(tmp_path, monkeypatch):
    path = place(cache.cache_directory(), zoo.find(*NAMES).path, WHOLE[:1000])
    calls = serve(monkeypatch, OSError("offline"), Response(WHOLE))
    with pytest.raises(OSError, match="offline"):
        zoo.resolve(*NAMES)
    assert zoo.resolve(*NAMES) == path and pathlib.Path(path).read_bytes() == WHOLE
    assert zoo.resolve(*NAMES) == path and len(calls) == 2


def test_the_index_is_a_table(monkeypatch):
    page, table = b"<html></html>", b"name,filename,ds,adapt_filename,final_val\nB/16,x,i21k,y,0.5\n"
    serve(monkeypatch, Response(page), Response(table))
    with pytest.raises(OSError, match="not a table"):
        zoo.fetch("vit_models/augreg/index.csv")
    path = zoo.fetch("vit_models/augreg/index.csv")
    assert pathlib.Path(path).read_bytes() == table


def test_progress_is_shown_on_a_terminal(monkeypatch, capsys):
    serve(monkeypatch, Response(WHOLE), Response(WHOLE))
    monkeypatch.setattr(_progress, "_EVERY", 0.0)
    zoo.resolve(*NAMES)
    assert "MiB/s" not in capsys.readouterr().err
    os.unlink(zoo.resolve(*NAMES))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    zoo.resolve(*NAMES)
    captured = capsys.readouterr()
    assert "MiB/s" in captured.err and not captured.out


@pytest.mark.parametrize("address", ["https://example.com/a.npz", "gs://bucket/../../x.npz", "gs://bucket//x.npz"])
def test_addresses_elsewhere_are_refused(address):
    with pytest.raises(ValueError):
        zoo.resolve("ViT-B/16", address)


def test_classes_of_imagenet():
    small, large = zoo.imagenet_classes(1000), zoo.imagenet_classes(21_843)
    assert small[0] == ("n01440764", "tench, Tinca tinca") and small[999][0] == "n15075141"
    assert len(large) == 21_843 and large[0] == ("n00004475", "organism, being")
    assert {identifier for identifier, _ in small} <= {identifier for identifier, _ in large} | {"n04399382"}
    assert all(identifier[0] == "n" and identifier[1:].isdigit() and name for identifier, name in large)
    with pytest.raises(ValueError, match="class_names"):
        zoo.imagenet_classes(10)


def test_decode_predictions():
    predictions = np.zeros((2, 1000), "float32")
    predictions[0, [281, 285]] = 3.0, 2.0
    predictions[1, 999] = 0.5
    first, second = zoo.decode_predictions(predictions, top=2)
    assert first == [("n02123045", "tabby, tabby cat", 3.0), ("n02124075", "Egyptian cat", 2.0)]
    assert second[0][0] == "n15075141" and len(second) == 2
    named = zoo.decode_predictions([[0.1, 0.9]], class_names=["cat", "dog"])
    assert [item[:2] for item in named[0]] == [("1", "dog"), ("0", "cat")]
    for wrong in (np.zeros(1000), np.zeros((1, 3))):
        with pytest.raises(ValueError):
            zoo.decode_predictions(wrong)


def test_heads_bring_their_classes(tmp_path, monkeypatch, caplog):
    # A small model stands for the published one.
    arguments = dict(hidden_size=32, num_layers=1, num_heads=2, mlp_dim=32, patch_size=16, image_size=32)
    model = models.VisionTransformer(**arguments, classes=1000)
    monkeypatch.setenv(cache.MIRROR_VARIABLE, str(tmp_path))
    save_checkpoint(model, tmp_path / zoo.find("ViT-B/16", "augreg").path)
    copy = models.VisionTransformer(**arguments, classes=1000)
    with caplog.at_level("WARNING", logger="absl"):
        assert zoo.load_weights(copy, "ViT-B/16", "augreg").reset == []
    assert any("image_size=384" in record.getMessage() for record in caplog.records)
    assert copy.class_names[0] == "tench, Tinca tinca"
    fewer = models.VisionTransformer(**arguments, classes=3)
    assert zoo.load_weights(fewer, "ViT-B/16", "augreg").reset and not hasattr(fewer, "class_names")


@pytest.mark.parametrize(
    ("mebibytes", "is_close"), [(116.5, False), (117.5, True), (118.9, True), (119.5, False), (80, False)]
)
def test_sizes_differ_by_at_most_one_percent(mebibytes, is_close, monkeypatch, caplog):
    """The owners state 118 MiB. What is as long is opened, and is no archive."""
    entry = zoo.find("ViT-S/32", "augreg-imagenet21k")
    path = place(cache.cache_directory(), entry.path)
    with open(path, "r+b") as file:
        file.truncate(int(mebibytes * 2**20))  # no block is written
    serve(monkeypatch, OSError("offline"))
    with pytest.raises(OSError, match="offline"), caplog.at_level("WARNING", logger="absl"):
        zoo.resolve("ViT-S/32", "augreg-imagenet21k")
    (message,) = (record.getMessage() for record in caplog.records if "not usable" in record.getMessage())
    assert ("118 MiB" not in message) == is_close


def test_the_mirror_is_used_before_the_cache(tmp_path, monkeypatch):
    entry = zoo.find(*NAMES)
    cached = place(cache.cache_directory(), entry.path, WHOLE)
    assert zoo.resolve(*NAMES) == cached
    monkeypatch.setenv(cache.MIRROR_VARIABLE, str(tmp_path / "mirror"))
    assert zoo.resolve(*NAMES) == cached  # which the mirror lacks
    mirrored = place(tmp_path / "mirror", entry.path, WHOLE)
    assert zoo.resolve(*NAMES) == mirrored
