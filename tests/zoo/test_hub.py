"""Models of the Hugging Face hub by name, from a hub on this machine."""

import os
import pathlib
import sys

import pytest

from keras_vit import zoo
from keras_vit.checkpoints import save_checkpoint
from keras_vit.zoo import cache, hub
from tests import tiny
from tests.zoo.local_hub import COMMIT, local_hub  # noqa: F401 (a fixture)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_checkpoint(tiny.model(num_layers=1), folder, format="huggingface")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "other.safetensors").write_bytes(b"of another model")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def model(local_hub, files):  # noqa: F811
    """The hub, with the model `a/b`."""
    local_hub.repositories["a/b"] = dict(files)
    return local_hub


@pytest.mark.parametrize(
    "text,address",
    [
        ("hf:a/b", "hf:a/b"),
        ("hf://a/b", "hf:a/b"),
        ("https://huggingface.co/a/b", "hf:a/b"),
        ("hf:a/b@v1.0", "hf:a/b@v1.0"),
        ("hf:a/b@refs/pr/1", "hf:a/b@refs/pr/1"),
        ("hf:a/b@v1/x.safetensors", "hf:a/b@v1/x.safetensors"),
        ("hf:a/b/x.safetensors", "hf:a/b/x.safetensors"),
    ],
)
def test_every_spelling_of_a_hub_name_is_accepted(text, address):
    assert hub.canonical_name(text) == zoo.parse_weights_name(text).location == address


OUTSIDE = [
    "hf:../..",
    "hf:a/..",
    "hf:./b",
    "hf://../a",
    "hf:a/..@x/../../secret",
    "hf:a/b@x/..",
    "hf:a/b@main/../c.safetensors",
]


@pytest.mark.parametrize(
    "text", ["hf:a", "hf:a/b/c", "https://huggingface.co/a/b/tree/main", "hf:a/b@", "hf:a/b/c.bin", *OUTSIDE]
)
def test_other_spellings_are_refused(text):
    with pytest.raises(ValueError, match="hf:OWNER/NAME"):
        zoo.parse_weights_name(text)


def test_configuration_and_safetensors_are_fetched(model):
    folder = pathlib.Path(zoo.resolve("hf:a/b"))
    fetched = {"config.json", "preprocessor_config.json", "model.safetensors"}
    assert {path.name for path in folder.iterdir()} == fetched == set(model.sent)
    for text in ("hf:a/b", "hf:a/b@main"):
        assert zoo.parse_weights_name(text).pinned() == f"hf:a/b@{COMMIT}"
    assert zoo.resolve(f"hf:a/b@{COMMIT}") == str(folder) and len(model.sent) == 3


def test_a_file_that_was_damaged_in_the_cache_is_fetched_again(model, files):
    weights = pathlib.Path(zoo.resolve("hf:a/b"), "model.safetensors")
    weights.resolve().write_bytes(files["model.safetensors"][:-1] + b"\0")
    hub.fetch.cache_clear()
    zoo.resolve("hf:a/b")
    assert weights.read_bytes() == files["model.safetensors"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change,reason", [({"cut": 1000}, "1000 bytes"), ({"corrupted": {"model.safetensors"}}, "SHA-256")]
)
def test_wrong_downloads_are_refused(model, files, change, reason):
    """The package of the hub resumes a download five times, with pauses."""
    vars(model).update(change)
    with pytest.raises(OSError, match=f"Could not fetch hf:a/b.*{reason}"):
        zoo.resolve("hf:a/b")
    vars(model).update(cut=None, corrupted=set())
    assert pathlib.Path(zoo.resolve("hf:a/b"), "model.safetensors").read_bytes() == files["model.safetensors"]


def test_without_a_network_the_cache_is_used(model, monkeypatch):
    folder = zoo.resolve("hf:a/b")
    hub.fetch.cache_clear()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # without a server
    assert zoo.resolve("hf:a/b") == folder
    with pytest.raises(
        OSError, match=f"Could not fetch hf:a/c .*https://huggingface.co/a/c .*{zoo.search_paths('hf:a/c')[-1]}"
    ):
        zoo.resolve("hf:a/c")


def test_gated_model_names_the_license_page(model):
    model.gated.add("a/b")
    with pytest.raises(PermissionError, match="accept its license at https://huggingface.co/a/b, and log in") as error:
        zoo.resolve("hf:a/b")
    assert "\n" not in str(error.value) and not model.sent


@pytest.mark.parametrize("text,part", [("hf:no/model", "no model 'no/model'"), ("hf:a/b@v9", "no revision 'v9'")])
def test_models_missing_on_the_hub_are_reported(text, part, model):
    with pytest.raises(FileNotFoundError, match=part):
        zoo.resolve(text)


def test_model_without_safetensors_is_refused(model, files):
    model.repositories["a/b"] = {name: files[name] for name in ("config.json", "pytorch_model.bin")}
    with pytest.raises(OSError, match=r"no .safetensors file.*pytorch_model.bin"):
        zoo.resolve("hf:a/b")
    assert "pytorch_model.bin" not in model.sent


def test_single_safetensors_file_of_any_name_is_found(model, files):
    one = {"config.json": files["config.json"], "x.safetensors": files["model.safetensors"], "onnx/y.safetensors": b""}
    model.repositories |= {"a/one": one, "a/two": {**one, "y.safetensors": files["model.safetensors"]}}
    assert os.path.basename(zoo.resolve(f"hf:a/one@{COMMIT}")) == "x.safetensors"
    assert set(model.listed) == {COMMIT}  # the newest revision may have other names
    with pytest.raises(OSError, match="2 files of weights.*hf:a/two/x.safetensors, hf:a/two/y.safetensors"):
        zoo.resolve("hf:a/two")
    assert os.path.basename(zoo.resolve("hf:a/two/y.safetensors")) == "y.safetensors"
    assert zoo.parse_weights_name("hf:a/two/y.safetensors").pinned() == f"hf:a/two@{COMMIT}/y.safetensors"
    with pytest.raises(OSError, match="z.safetensors"):
        zoo.resolve("hf:a/two/z.safetensors")


def test_manually_placed_model_needs_no_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(cache.MIRROR_VARIABLE, str(tmp_path / "mirror"))
    with pytest.raises(ImportError, match=r"keras-vision-transformers\[hub\]"):
        zoo.resolve("hf:by/hand")
    folder = tmp_path / "mirror" / "hf" / "by" / "hand"
    folder.mkdir(parents=True)
    assert zoo.resolve("hf:by/hand") == str(folder) == str(zoo.search_paths("hf:by/hand")[0])
    assert zoo.parse_weights_name("hf:by/hand").pinned() == "hf:by/hand"  # its commit is not known
