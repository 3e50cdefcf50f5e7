"""Writing: readers see the old or the new checkpoint, and failures leave no files."""

import errno
import json
import os
import textwrap
import threading

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

import keras_vit
from keras_vit.checkpoints import model_from_checkpoint, save, save_checkpoint
from tests import forked, tiny
from tests.checkpoints import files

A, B = [f"a{index}" for index in range(6)], [f"b{index}" for index in range(6)]


@pytest.fixture(scope="module")
def model():
    return files.golden_model("hf_vit")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["directory", "file.safetensors"])
@pytest.mark.parametrize("stop_after", [1, 2])
def test_interrupted_writes_never_mix_weights_and_class_names(target, stop_after, model, tmp_path, monkeypatch):
    """Stopped between the files, it left the weights of one model with the class names of another."""
    path = save_checkpoint(model, tmp_path / target, format="huggingface", class_names=A)
    double = model_from_checkpoint(path)
    double.get_layer("head").bias.assign(np.asarray(double.get_layer("head").bias) * 2)
    replaced = []

    def replace(source, destination):
        if not os.path.basename(destination).startswith(".writing-"):
            if len(replaced) == stop_after:
                raise KeyboardInterrupt
            replaced.append(destination)
        rename(source, destination)

    rename = os.replace
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", replace)
        save_checkpoint(double, path, format="huggingface", class_names=B)
        raise KeyboardInterrupt  # a single file has one configuration, so that no third file is written
    read = model_from_checkpoint(path)
    old = np.array_equal(read.get_layer("head").bias, model.get_layer("head").bias)
    assert read.class_names == tuple(A if old else B)
    assert not any(name.startswith(".writing-") for name in os.listdir(tmp_path))
    assert str(replaced[0]).endswith(".safetensors")  # contains a copy of the configuration


def test_empty_directory_receives_all_files_at_once(model, tmp_path, monkeypatch):
    (tmp_path / "x").mkdir()
    rename, replaced = os.replace, []

    def replace(source, destination):
        if not os.path.basename(destination).startswith(".writing-"):
            if replaced:
                raise KeyboardInterrupt
            replaced.append(destination)
        rename(source, destination)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", replace)
        save_checkpoint(model, tmp_path / "x", format="huggingface")
    assert os.listdir(tmp_path / "x") == []


def test_configuration_and_preprocessor_for_other_programs_are_written(tmp_path):
    """Our reader does not need these fields."""
    names = ("ape", "bee", "cat")
    model = tiny.model(num_layers=1, image_size=(16, 24), classes=3, activation="gelu")
    path = save_checkpoint(model, tmp_path / "x", format="huggingface", class_names=names)
    config, preprocessor = (
        json.loads((tmp_path / "x" / f"{name}.json").read_text()) for name in ("config", "preprocessor_config")
    )
    assert config["label2id"] == {name: index for index, name in enumerate(names)}
    assert (config["hidden_act"], config["architectures"]) == ("gelu", ["ViTForImageClassification"])
    assert preprocessor["size"] == {"height": 16, "width": 24}
    assert preprocessor["rescale_factor"] == pytest.approx(1 / 255)
    assert preprocessor["resample"] == Image.Resampling.BILINEAR
    with safe_open(os.path.join(path, "model.safetensors"), "numpy") as file:
        assert file.metadata()["format"] == "pt"  # transformers refuses files without it


@pytest.mark.slow
def test_edited_configuration_is_reported(model, tmp_path, caplog):
    path = save_checkpoint(model, tmp_path / "x", format="huggingface", class_names=A)
    model_from_checkpoint(path)
    assert not caplog.records
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    config["id2label"] = dict(enumerate(B))
    (tmp_path / "x" / "config.json").write_text(json.dumps(config))
    with caplog.at_level("WARNING", logger="absl"):
        assert model_from_checkpoint(path).class_names == tuple(A)
    assert any("config=..." in record.getMessage() for record in caplog.records)
    assert model_from_checkpoint(path, config=tmp_path / "x" / "config.json").class_names == tuple(B)


def test_other_files_of_the_directory_are_kept(model, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    save_checkpoint(model, tmp_path, format="huggingface")
    names = {"README.md", "config.json", "model.safetensors", "preprocessor_config.json"}
    assert set(os.listdir(tmp_path)) == names
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        assert set(file.keys()) == set(files.tensors_of("hf_vit"))


@pytest.mark.slow
def test_threads_can_write_the_same_directory(model, tmp_path):
    # Two of four ended with "Directory not empty".
    errors = []

    def write():
        try:
            save_checkpoint(model, tmp_path / "x", format="huggingface")
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert os.listdir(tmp_path) == ["x"] and len(os.listdir(tmp_path / "x")) == 3
    model_from_checkpoint(tmp_path / "x")


def test_directory_created_during_the_write_is_filled(model, tmp_path, monkeypatch):
    write = save.write_safetensors

    def late(*arguments):
        (tmp_path / "x").mkdir(exist_ok=True)
        (tmp_path / "x" / "README.md").write_text("mine")
        write(*arguments)

    monkeypatch.setattr(save, "write_safetensors", late)
    save_checkpoint(model, tmp_path / "x", format="huggingface")
    assert {"README.md", "model.safetensors"} < set(os.listdir(tmp_path / "x"))


@pytest.mark.slow
def test_full_disk_raises_one_error_that_names_the_file(tmp_path):
    script = """
        import resource, signal, sys
        from keras_vit.checkpoints import model_from_checkpoint, save_checkpoint
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        for case in sys.argv[1:]:
            source, target, format = case.split(",")
            model = model_from_checkpoint(source, num_heads=4)
            try:
                save_checkpoint(model, target, format=format)
            except OSError as error:
                print(error.errno, error.filename)
    """
    cases = [
        ("vit_token_legacy", "x.npz", "google"),
        ("hf_vit", "x", "huggingface"),
        ("timm_vit", "x.safetensors", "timm"),
    ]
    arguments = [f"{files.golden_path(source)},{tmp_path / target},{format}" for source, target, format in cases]
    _, output = forked.run("-c", textwrap.dedent(script), *arguments)
    expected = [f"{errno.EFBIG} {tmp_path / target}" for _, target, _ in cases]
    assert [line for line in output.splitlines() if not line.startswith("WARNING")] == expected
    assert os.listdir(tmp_path) == []


def test_file_modes_are_kept_and_the_umask_is_not_set(model, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask of all threads was changed"))
    path = tmp_path / "x.safetensors"
    save_checkpoint(model, path, format="huggingface")
    path.chmod(0o600)
    save_checkpoint(model, path, format="huggingface")
    assert path.stat().st_mode & 0o777 == 0o600


def test_written_mlp_ratio_gives_the_exact_width_in_timm(tmp_path):
    model = keras_vit.VisionTransformer(8, 11, 1, 1, 15, image_size=16, classes=2, activation="gelu")
    assert int(11 * (15 / 11)) == 14  # rounding
    save_checkpoint(model, tmp_path / "x", format="timm")
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    assert int(11 * config["model_args"]["mlp_ratio"]) == 15
