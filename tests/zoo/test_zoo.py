"""Published weights: the search for files, the messages for missing files, and the classes of the heads."""

import base64
import contextlib
import email.message
import hashlib
import http.server
import io
import os
import pathlib
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import safetensors.numpy

from keras_vit import applications, models, zoo
from keras_vit.checkpoints import load_checkpoint, save_checkpoint
from keras_vit.models.normalization import IMAGENET
from keras_vit.util import progress
from keras_vit.zoo import cache, hub
from tests import tiny

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


URLOPEN = urllib.request.urlopen


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


def test_listed_weights_are_unique_and_have_a_model():
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
    assert [entry.name for entry in zoo.list_weights("ViT-H/14")] == ["imagenet21k"]  # it was never fine-tuned
    assert {"bit-s", "bit-m"} <= {entry.name for entry in zoo.list_weights("BiT-R152x4")}
    hybrid = zoo.find("R50+ViT-B/16", "imagenet21k+imagenet2012")
    assert hybrid.url.endswith("vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz")
    with pytest.raises(ValueError, match="Did you mean 'ViT-B/16'"):
        zoo.list_weights("VIT-B/16")


def test_hub_encoders_have_url_license_and_resolution():
    entry = zoo.find("ViT-B/14", "dinov2-registers")
    assert entry.url == "https://huggingface.co/facebook/dinov2-with-registers-base"
    assert (entry.classes, entry.resolution, entry.license) == (None, 518, "Apache-2.0")
    assert zoo.find("ViT-So400m/14", "siglip2-384").resolution == 27 * 14
    assert zoo.find("ViT-B/16", "siglip2").url.endswith("google/siglip2-base-patch16-224")
    assert not [entry for entry in zoo.list_weights() if "dinov3" in entry.path]  # their license asks for consent


@pytest.mark.slow
def test_constructor_loads_an_encoder_of_the_hub(tmp_path, monkeypatch):
    arguments = {"layer_scale": 1.0, "activation": "gelu", "image_size": 28, "include_top": False}
    source = tiny.randomize(applications.create_model("ViT-S/14", **arguments))
    source.input_normalization = IMAGENET
    save_checkpoint(source, tmp_path / "hub", format="huggingface")
    fetched = []
    monkeypatch.setattr(hub, "fetch", lambda address, _: fetched.append(address) or str(tmp_path / "hub"))
    images = np.random.default_rng(0).normal(size=(1, 28, 28, 3)).astype("float32")
    model = applications.ViT_S14(weights="dinov2", image_size=28)
    np.testing.assert_allclose(model(images), source(images), rtol=1e-5, atol=1e-5)  # float32
    assert model.input_normalization == IMAGENET and fetched[0] == "hf:facebook/dinov2-small"
    assert applications.ViT_S14(weights="dinov2", image_size=28, classes=5).output_shape == (None, 5)


def test_the_list_is_a_table():
    entries = zoo.list_weights("ViT_B16")
    assert list(entries) == list(zoo.list_weights("ViT-B/16")) != []
    header, first, *rest = str(entries).splitlines()
    assert header.split()[:5] == ["model", "weights", "size", "resolution", "accuracy"]
    assert first.split()[:4] == ["ViT-B/16", "augreg", "384", "85.49%"] and len(rest) == len(entries) - 1
    columns = [header.index(name) for name in ("size", "resolution", "accuracy", "pretraining", "head")]
    cells = [rest[0][start:].split("  ")[0] for start in columns]
    assert cells == ["391 MiB", "224", "", "imagenet21k", "imagenet21k"]
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


@pytest.mark.slow
def test_padding_other_than_in_training_is_reported(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(cache.MIRROR_VARIABLE, str(tmp_path))
    arguments = dict(block_sizes=(1, 1), image_size=32, classes=21_843)
    source = models.BiTResNet(**arguments, pool_padding="zeros")
    path = save_checkpoint(source, tmp_path / zoo.find("BiT-R50x1", "bit-m").path)
    np.savez(path, **np.load(path))  # published files have no metadata of this package
    with caplog.at_level("WARNING", logger="absl"):
        load_checkpoint(source, "BiT-R50x1:bit-m")
    assert not any("pool_padding" in record.getMessage() for record in caplog.records)
    with pytest.raises(ValueError, match="pool_padding='zeros'"):
        load_checkpoint(models.BiTResNet(**arguments), "BiT-R50x1:bit-m")


def test_existing_paths_are_returned_unchanged(tmp_path):
    path = place(tmp_path, "mine.npz")
    assert zoo.resolve(path, "ViT-B/16") == path
    with pytest.raises(FileNotFoundError, match="yours.npz"):
        zoo.resolve(tmp_path / "yours.npz", "ViT-B/16")
    with pytest.raises(ValueError, match="Did you mean 'augreg'.*Published: augreg, "):
        zoo.resolve("agreg", "ViT-B/16")
    for wrong in (123, True, ["augreg"]):
        with pytest.raises(ValueError, match="`weights`"):
            zoo.resolve(wrong, "ViT-B/16")


def test_weights_are_found_in_a_mirror(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.MIRROR_VARIABLE, str(tmp_path / "mirror"))
    entry = zoo.find("ViT-Ti/16", "augreg")
    path = place(tmp_path / "mirror", entry.path)
    assert zoo.resolve("augreg", "ViT-Ti/16") == path
    assert zoo.resolve(os.path.basename(entry.path).removesuffix(".npz"), "ViT-Ti/16") == path
    assert zoo.resolve("gs://" + entry.path, "ViT-Ti/16") == path
    assert zoo.resolve(entry.url, "ViT-Ti/16") == path
    hybrid = zoo.find("R50+ViT-B/16", "imagenet21k+imagenet2012")
    assert zoo.parse_weights_name(hybrid.url).location == hybrid.path  # the URL has %2B in place of +


def test_unknown_names_are_refused_with_a_suggestion():
    with pytest.raises(
        ValueError, match=r"ViT-B/16 has no published weights named 'imagenet'\. Did you mean 'augreg'\?"
    ):
        zoo.resolve("imagenet", "ViT-B/16")  # the most accurate of its classifiers
    with pytest.raises(ValueError, match="ViT-S/14 has no published weights named 'imagenet'. Published: dinov2, "):
        zoo.resolve("imagenet", "ViT-S/14")  # which has none
    with pytest.raises(ValueError, match="ViT-g/14 has no .*Published: none. Or pass the path"):
        zoo.resolve("augreg", "ViT-g/14")
    with pytest.raises(ValueError, match=r"ViT_B16 has no published weights named 'agreg'\. Did you mean 'augreg'\?"):
        zoo.resolve("ViT_B16:agreg")
    with pytest.raises(FileNotFoundError, match="add the model: 'ViT_L16:augreg'"):
        zoo.resolve("augreg")
    with pytest.raises(FileNotFoundError, match="hub: 'hf:google/vit'"):
        zoo.resolve("google/vit")
    with pytest.raises(FileNotFoundError, match="'google/vit.npz'.$"):
        zoo.resolve("google/vit.npz")


class Response(io.BytesIO):
    """A response of the server, cut after `end` bytes."""

    def __init__(self, content, end=None, kind="application/octet-stream", length=None, hashes=()):
        super().__init__(content[:end])
        self.headers = email.message.Message()
        self.headers["Content-Length"] = length or str(len(content))
        self.headers["Content-Type"] = kind
        for stated in hashes:
            self.headers["x-goog-hash"] = stated


def serve(monkeypatch, *answers):
    """Let the server send one response after the other, and return the list of requested URLs."""
    calls, answers = [], list(answers)

    def urlopen(url, timeout):
        calls.append(url)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return calls


WHOLE = (GOLDEN / "vit_gap.npz").read_bytes()
NAMES = "ViT-S/32", "augreg-224"


def test_downloads_are_cached_and_complete(tmp_path, monkeypatch):
    offline = urllib.error.URLError("no route to host")
    calls = serve(monkeypatch, offline, Response(WHOLE, end=1000), Response(WHOLE))
    entry = zoo.find(*NAMES)
    for reason in ("no route to host", "1000 of"):
        with pytest.raises(OSError, match=reason) as error:
            zoo.resolve(*reversed(NAMES))
        # What to fetch, from where, and where to put it.
        for part in (entry.url, cache.MIRROR_VARIABLE, entry.path, str(tmp_path / "home" / "keras_vit")):
            assert part in str(error.value)
        assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    path = zoo.resolve(*reversed(NAMES))
    assert pathlib.Path(path).read_bytes() == WHOLE
    assert zoo.resolve(*reversed(NAMES)) == path and calls == [entry.url] * 3


PAGE = b"<html>Log in to the guest network</html>"


@pytest.mark.parametrize(
    "answer,reason",
    [
        (Response(PAGE, kind="text/html; charset=utf-8"), "a page instead"),
        (Response(PAGE), "error page"),
        (Response(WHOLE[:1000]), "the archive has no end"),
        (Response(safetensors.numpy.save({"a": np.zeros(9)})[:-1]), "truncated or damaged"),
    ],
    ids=["page", "page without its type", "cut", "cut safetensors"],
)
def test_wrong_downloads_are_not_cached(answer, reason, tmp_path, monkeypatch):
    # They were cached, and used from then on.
    calls = serve(monkeypatch, answer, Response(WHOLE))
    with pytest.raises(OSError, match=reason):
        zoo.resolve(*reversed(NAMES))
    assert pathlib.Path(zoo.resolve(*reversed(NAMES))).read_bytes() == WHOLE and len(calls) == 2


def hashes_of(content):
    """What Google's storage states."""
    return "crc32c=AAAAAA==", "md5=" + base64.b64encode(hashlib.md5(content).digest()).decode()


@pytest.mark.parametrize("joined", [False, True])
def test_a_download_is_compared_with_the_hash_that_the_server_states(joined, tmp_path, monkeypatch):
    save_checkpoint(tiny.model(num_layers=1), tmp_path / "model.safetensors", format="huggingface")
    whole = (tmp_path / "model.safetensors").read_bytes()
    hashes = [",".join(hashes_of(whole))] if joined else hashes_of(whole)
    serve(monkeypatch, Response(flipped(whole), hashes=hashes), Response(whole, hashes=hashes))
    with pytest.raises(OSError, match="MD5"):
        zoo.fetch("bucket/model.safetensors")
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert pathlib.Path(zoo.fetch("bucket/model.safetensors")).read_bytes() == whole


def flipped(content):
    """The content with another bit at its end."""
    return content[:-1] + bytes([content[-1] ^ 1])


def test_a_file_that_was_damaged_in_the_cache_is_downloaded_again(tmp_path, monkeypatch, caplog):
    save_checkpoint(tiny.model(num_layers=1), tmp_path / "model.safetensors", format="huggingface")
    whole = (tmp_path / "model.safetensors").read_bytes()
    calls = serve(monkeypatch, Response(whole), Response(flipped(whole)), Response(whole))
    path = pathlib.Path(zoo.fetch("bucket/model.safetensors"))
    record = path.with_name("model.safetensors.sha256")
    assert record.read_text() == f"{hashlib.sha256(whole).hexdigest()}  model.safetensors\n"
    assert zoo.fetch("bucket/model.safetensors") == str(path) and len(calls) == 1
    path.write_bytes(flipped(whole))
    with caplog.at_level("WARNING", logger="absl"), pytest.raises(OSError, match="model.safetensors.sha256"):
        zoo.fetch("bucket/model.safetensors")  # the server has another file now
    assert any("damaged" in line.getMessage() for line in caplog.records)
    assert pathlib.Path(zoo.fetch("bucket/model.safetensors")).read_bytes() == whole
    record.unlink()  # a file of the user, whose hash is unknown
    path.write_bytes(flipped(whole))
    assert zoo.fetch("bucket/model.safetensors") == str(path) and len(calls) == 3


@pytest.mark.parametrize("length", ["abc", "-1", "9" * 5000, "\u00b2", "1, 1"])
def test_invalid_content_length_is_refused(length, monkeypatch):
    serve(monkeypatch, Response(WHOLE, length=length))
    with pytest.raises(OSError, match="Content-Length"):
        zoo.resolve(*reversed(NAMES))


def test_size_and_time_of_a_download_are_limited(monkeypatch):
    serve(monkeypatch, *(Response(WHOLE, length=length) for length in ("1000000", "0", "0")))
    with monkeypatch.context() as patched:
        patched.setattr(cache, "_MAX_BYTES", len(WHOLE) - 1)
        for _ in range(2):  # stated, and sent
            with pytest.raises(OSError, match=f"at most {len(WHOLE) - 1} bytes"):
                zoo.resolve(*reversed(NAMES))
    monkeypatch.setattr(cache, "_TIMEOUT", -1)  # a download that has lasted for a second
    monkeypatch.setattr(cache, "_BYTES_PER_SECOND", len(WHOLE) + 1)
    with pytest.raises(OSError, match="bytes per second"):
        zoo.resolve(*reversed(NAMES))


def test_a_download_may_have_the_largest_size(monkeypatch):
    serve(monkeypatch, Response(WHOLE))
    monkeypatch.setattr(cache, "_MAX_BYTES", len(WHOLE))
    assert pathlib.Path(zoo.resolve(*reversed(NAMES))).read_bytes() == WHOLE


@pytest.mark.slow
def test_slow_download_times_out(tmp_path, monkeypatch):
    """`read` waited for complete blocks, and the time limit of a socket restarts with each byte."""

    class Drip(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(100):
                    self.wfile.write(b"x")
                    time.sleep(0.05)

        def log_message(self, *arguments):
            pass

    monkeypatch.setattr(urllib.request, "urlopen", URLOPEN)
    monkeypatch.setattr(cache, "_TIMEOUT", 0.5)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Drip) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(OSError, match="bytes per second"):
            cache._download(f"http://127.0.0.1:{server.server_port}", str(tmp_path / "file"))
        server.shutdown()


def test_the_index_is_a_table(monkeypatch):
    table = b"name,filename,ds,adapt_filename,final_val\nB/16,x,i21k,y,0.5\n"
    serve(monkeypatch, Response(PAGE, kind="text/html"), Response(table))
    with pytest.raises(OSError, match="a page instead"):
        zoo.fetch("vit_models/augreg/index.csv")
    path = zoo.fetch("vit_models/augreg/index.csv")
    assert pathlib.Path(path).read_bytes() == table


def test_progress_is_shown_on_a_terminal(monkeypatch, capsys):
    serve(monkeypatch, Response(WHOLE), Response(WHOLE))
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    zoo.resolve(*reversed(NAMES))
    assert "Downloading," not in capsys.readouterr().err
    os.unlink(zoo.resolve(*reversed(NAMES)))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    zoo.resolve(*reversed(NAMES))
    captured = capsys.readouterr()
    assert "Downloading, 0:00, 1 MiB" in captured.err and not captured.out


@pytest.mark.parametrize(
    "address",
    [
        *("https://example.com/a.npz", "gs://bucket/../../x.npz", "gs://bucket//x.npz", "gs://vit_models/a\\b.npz"),
        f"https://{cache.HOST}/bucket/%2e%2e/%2e%2e/x.npz",
    ],
)
def test_urls_of_other_hosts_are_refused(address):
    with pytest.raises(ValueError):
        zoo.resolve(address, "ViT-B/16")


def test_imagenet_class_names_are_complete():
    small, large = zoo.imagenet_classes(1000), zoo.imagenet_classes(21_843)
    assert small[0] == ("n01440764", "tench, Tinca tinca") and small[999][0] == "n15075141"
    assert len(large) == 21_843 and large[0] == ("n00004475", "organism, being")
    assert {identifier for identifier, _ in small} <= {identifier for identifier, _ in large} | {"n04399382"}
    assert all(identifier[0] == "n" and identifier[1:].isdigit() and name for identifier, name in large)
    with pytest.raises(ValueError, match="class_names"):
        zoo.imagenet_classes(10)


def test_decode_predictions_returns_class_names():
    predictions = np.zeros((2, 1000), "float32")
    predictions[0, [281, 285]] = 3.0, 2.0
    predictions[1, 999] = 0.5
    first, second = zoo.decode_predictions(predictions, top=2)
    assert first == [("n02123045", "tabby, tabby cat", 3.0), ("n02124075", "Egyptian cat", 2.0)]
    assert second[0][0] == "n15075141" and len(second) == 2
    named = zoo.decode_predictions([[0.1, 0.9]], class_names=["cat", "dog"])
    assert [item[:2] for item in named[0]] == [("1", "dog"), ("0", "cat")]
    scores = np.arange(40)[None] % 2  # NumPy's default order of so many scores is not stable
    (tie,) = zoo.decode_predictions(scores, top=3, class_names=[f"class {n}" for n in range(40)])
    assert [name for _, name, _ in tie] == ["class 1", "class 3", "class 5"]  # the first of equal scores
    for wrong in (np.zeros(1000), np.zeros((1, 3))):
        with pytest.raises(ValueError):
            zoo.decode_predictions(wrong)


@pytest.mark.slow
def test_weights_with_a_head_have_class_names(tmp_path, monkeypatch, caplog):
    # A small model stands for the published one.
    arguments = dict(hidden_size=32, num_layers=1, num_heads=2, mlp_dim=32, patch_size=16, image_size=32)
    model = models.VisionTransformer(**arguments, classes=1000)
    monkeypatch.setenv(cache.MIRROR_VARIABLE, str(tmp_path))
    save_checkpoint(model, tmp_path / zoo.find("ViT-B/16", "augreg").path)
    copy = models.VisionTransformer(**arguments, classes=1000)
    with caplog.at_level("WARNING", logger="absl"):
        assert load_checkpoint(copy, "ViT-B/16:augreg").reset == []
    assert any("image_size=384" in record.getMessage() for record in caplog.records)
    caplog.clear()
    with caplog.at_level("WARNING", logger="absl"):  # a model for all sizes has no other size
        load_checkpoint(models.VisionTransformer(**{**arguments, "image_size": None}, classes=1000), "ViT-B/16:augreg")
    assert not any("last trained" in record.getMessage() for record in caplog.records)
    assert copy.class_names[0] == "tench, Tinca tinca"
    fewer = models.VisionTransformer(**arguments, classes=3)
    assert load_checkpoint(fewer, "ViT-B/16:augreg").reset and fewer.class_names is None


def test_the_mirror_is_used_before_the_cache(tmp_path, monkeypatch):
    entry = zoo.find(*NAMES)
    cached = place(cache.cache_directory(), entry.path, WHOLE)
    assert zoo.resolve(*reversed(NAMES)) == cached
    monkeypatch.setenv(cache.MIRROR_VARIABLE, str(tmp_path / "mirror"))
    assert zoo.resolve(*reversed(NAMES)) == cached  # which the mirror lacks
    mirrored = place(tmp_path / "mirror", entry.path, WHOLE)
    assert zoo.resolve(*reversed(NAMES)) == mirrored
