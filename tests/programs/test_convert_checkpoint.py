"""The program that converts checkpoints."""

import json
import os

import numpy as np
import pytest

from keras_vit.checkpoints import model_from_checkpoint, save_checkpoint
from tests import programs, tiny
from tests.checkpoints import files


def convert(*argv, **options):
    return programs.call("export.convert_checkpoint", *argv, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name,format,target",
    [
        ("hf_vit", None, "model.keras"),
        ("vit_gap", "timm", "model.safetensors"),
    ],
)
def test_converted_file_gives_the_golden_logits(name, format, target, tmp_path):
    convert(files.golden_path(name), tmp_path / target, format=format)
    _, images, logits = files.golden_case(name)
    model = model_from_checkpoint(tmp_path / target)
    # As the golden data.
    np.testing.assert_allclose(np.asarray(model(images)), logits, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_file_of_other_outputs_is_refused(tmp_path, monkeypatch):
    program, model = programs.load("export.convert_checkpoint"), tiny.model()
    path = save_checkpoint(model, tmp_path / "vit.npz")
    program.check(program.outputs_of(model), path, "float32")
    model.get_layer("head").bias.assign_add([0.05] + [0.0] * (model.config.classes - 1))
    with pytest.raises(ValueError, match="they differ by 0.05"):
        program.check(program.outputs_of(model), path, "float32")
    monkeypatch.setattr(program, "model_from_checkpoint", lambda path: model)
    model.get_layer("head").bias.assign_add([1000.0] * model.config.classes)  # the tolerance grows with the outputs
    program.check(program.outputs_of(model) + 0.05, path, "float32")
    with pytest.raises(ValueError, match="they differ by 0.2"):
        program.check(program.outputs_of(model) + 0.2, path, "float32")


@pytest.mark.slow
def test_a_run_keeps_its_class_names(tmp_path):
    tiny.write_digits_run(tmp_path / "run", activation="gelu")
    convert(tmp_path / "run", tmp_path / "out", format="huggingface")
    model = model_from_checkpoint(tmp_path / "out")
    assert model.class_names == tuple(str(digit) for digit in range(10))


@pytest.mark.slow
def test_an_adapter_is_merged(tmp_path):
    lora = files.GOLDEN / "lora"
    convert(lora / "base", tmp_path / "out", adapter=lora / "adapter", format="huggingface")
    golden, model = np.load(lora / "io.npz"), model_from_checkpoint(tmp_path / "out")
    # Float32 sums in another order.
    np.testing.assert_allclose(np.asarray(model(golden["image"])), golden["merged_logits"], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="classes"):  # the head of the adapter has five
        convert(lora / "base", tmp_path / "other.npz", adapter=lora / "adapter", classes=3)


@pytest.mark.slow
def test_the_description_is_json(tmp_path, capsys):
    convert(files.golden_path("vit_gap"), describe=True)
    described = json.loads(capsys.readouterr().out)
    assert described["hidden_size"] == 32 and described["classes"] > 0
    convert(save_checkpoint(tiny.model(num_layers=1, include_top=False), tmp_path / "body.npz"), describe=True)
    described = json.loads(capsys.readouterr().out)
    assert described["include_top"] is False and "classes" not in described


def test_flags_accept_one_or_two_sides():
    one_or_two = programs.load("export.convert_checkpoint").one_or_two
    assert one_or_two("image_size", ["48"]) == 48 and one_or_two("grid", ["3", "4"]) == (3, 4)
    for wrong in ([], ["1", "2", "3"], ["-1"], ["1.5"]):
        with pytest.raises(
            ValueError, match=f"--grid must be SIZE or HEIGHT,WIDTH. Received: --grid={','.join(wrong)}"
        ):
            one_or_two("grid", wrong)


@pytest.mark.slow
def test_conversion_resizes_positions_and_refuses_wrong_flags(tmp_path):
    convert(files.golden_path("vit_gap"), tmp_path / "out.npz", image_size=["48", "64"])
    assert model_from_checkpoint(tmp_path / "out.npz").get_config()["image_size"] == [48, 64]
    with pytest.raises(ValueError, match="SRC and DST"):
        convert(files.golden_path("vit_gap"))
    with pytest.raises(ValueError, match="--image_size"):
        convert(files.golden_path("vit_gap"), tmp_path / "x.npz", image_size=["a"])
    with pytest.raises(ValueError, match="--format"):
        convert(files.golden_path("vit_gap"), tmp_path / "x.npz", format="onnx")
    with pytest.raises(ValueError, match="Formats that can: big_vision, timm"):
        convert(files.golden_path("bv_map"), tmp_path / "x", format="huggingface")
    assert sorted(os.listdir(tmp_path)) == ["out.npz"]


@pytest.mark.parametrize(
    "target,format", [("x.pth", None), ("x.pth", "huggingface"), ("x.npz", "timm"), ("x", None), ("x.npz", "keras")]
)
def test_suffix_and_format_must_agree(target, format, tmp_path):
    source = files.golden_path("vit_gap")
    with pytest.raises(ValueError, match=r"\.keras"):
        convert(source, tmp_path / target, format=format)
    assert not list(tmp_path.iterdir())
