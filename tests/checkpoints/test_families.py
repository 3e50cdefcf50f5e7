"""A family is one object: recognition, reading, matching and writing need only this object."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.checkpoints import CheckpointError, architecture, families, load_checkpoint, model_from_checkpoint
from keras_vit.checkpoints import save_checkpoint as save
from keras_vit.checkpoints.checkpoint import Checkpoint, Layout, variable_shapes
from keras_vit.checkpoints.families.family import Family, Writing
from keras_vit.checkpoints.rules import DENSE, HEADS_IN, HEADS_OUT, bind_stored, each, fused, rule

# Linear layers over flattened patches; the channels are three.
PATCHES = each(
    lambda w, heads: w.T.reshape(*(round((w.shape[1] / 3) ** 0.5),) * 2, 3, w.shape[0]),
    lambda w: w.reshape(-1, w.shape[-1]).T,
)


def rules(layout):
    attention = "encoderblock_{i}/MultiHeadDotProductAttention_0"
    parts = [f"{attention}/{part}/kernel" for part in ("query", "key", "value")]
    result = [
        rule("patches.weight", "embedding/kernel", PATCHES),
        rule("patches.bias", "embedding/bias"),
        rule("cls", "cls/cls"),
        rule("positions", architecture.TABLE),
        rule("layers.{i}.qkv", parts, fused(HEADS_IN, 3)),
        rule("layers.{i}.out.weight", f"{attention}/out/kernel", HEADS_OUT),
        rule("layers.{i}.out.bias", f"{attention}/out/bias"),
        rule("head.weight", "head/kernel", DENSE),
        rule("head.bias", "head/bias"),
    ]
    for index in (0, 1):
        result.append(
            rule(f"layers.{{i}}.mlp{index}.weight", f"encoderblock_{{i}}/MlpBlock_0/Dense_{index}/kernel", DENSE)
        )
        result.append(rule(f"layers.{{i}}.mlp{index}.bias", f"encoderblock_{{i}}/MlpBlock_0/Dense_{index}/bias"))
    norms = {f"layers.{{i}}.norm{index}": f"encoderblock_{{i}}/LayerNorm_{index}" for index in (0, 1)}
    for stored, variable in {**norms, "norm": "encoder_norm"}.items():
        result += [rule(f"{stored}.weight", f"{variable}/scale"), rule(f"{stored}.bias", f"{variable}/bias")]
    return result


def recognize(source, hints):
    if "patches.weight" not in source.tensors:
        return None
    layout = Layout("toy")
    bindings, unexpected = bind_stored(rules(layout), source.tensors)
    heads = hints.wanted.get("num_heads") or source.tensors["cls"].shape[-1] // 8
    shapes = variable_shapes(source, bindings, heads)
    arguments = {**architecture.infer_vit(shapes, heads, source.path), "activation": "gelu"}
    return Checkpoint(source, layout, bindings, shapes, arguments, unexpected=unexpected)


VALUES = {"qkv_bias": (False,), "activation": ("gelu",)}  # of other options, the default
TOY = Family(
    "toy",
    recognize,
    rules,
    resize_method="bilinear",
    writing=Writing(values=VALUES, layout=lambda config: Layout("toy"), tensors="safetensors"),
)
SIZES = dict(patch_size=4, hidden_size=16, num_layers=2, num_heads=2, mlp_dim=24, image_size=(8, 12), classes=3)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, TOY))


def make(**arguments):
    model = keras_vit.VisionTransformer(**{**SIZES, "activation": "gelu", "qkv_bias": False, **arguments})
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    return model


@pytest.mark.slow
def test_a_new_project_is_written_and_read(tmp_path):
    model = make()
    path = save(model, tmp_path / "toy.safetensors", format="toy")
    assert load_file(path)["patches.weight"].shape == (16, 48)
    again = model_from_checkpoint(path)
    assert again.config == model.config
    for ours, theirs in zip(model.trainable_variables, again.trainable_variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # Foreign files of this project, into another resolution.
    save_file(load_file(path), tmp_path / "foreign.safetensors")
    larger = make(image_size=24)
    report = load_checkpoint(larger, tmp_path / "foreign.safetensors", grid=(2, 3), head="reset")
    assert report.family == "toy" and any("method='bilinear'" in note for note in report.notes)
    save(larger, tmp_path / "directory", format="toy")
    assert [item.name for item in (tmp_path / "directory").iterdir()] == ["model.safetensors"]


@pytest.mark.slow
def test_models_that_the_readers_of_a_format_cannot_build_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="qkv_bias=True"):
        save(make(qkv_bias=True), tmp_path / "x", format="toy")
    with pytest.raises(CheckpointError, match="Formats that can: timm;"):  # the toy has no registers either
        save(make(num_registers=1), tmp_path / "x", format="huggingface")
    with pytest.raises(ValueError, match="`naming`"):
        save(make(), tmp_path / "x", format="toy", naming="linen")
    bit = keras_vit.BiTResNet((1,), 1, image_size=32, classes=3)
    with pytest.raises(CheckpointError, match="cannot represent this model: it does not support .*s. Formats that can"):
        save(bit, tmp_path / "x", format="toy")


@pytest.mark.slow
def test_options_unknown_to_a_format_must_have_their_default(tmp_path):
    """An option of the next release: the files of other projects have its default, and cannot hold another value."""
    config = make(layer_norm_epsilon=1e-6).config.to_dict()
    assert TOY.writing.reasons({**config, "gated": False}, {"gated": False}) == []
    (reason,) = TOY.writing.reasons({**config, "gated": True}, {"gated": False})
    assert "gated=True" in reason
    path = save(make(), tmp_path / "toy.safetensors", format="toy")
    save_file(load_file(path), tmp_path / "foreign.safetensors")
    for file in (path, tmp_path / "foreign.safetensors"):
        with pytest.raises(CheckpointError, match="position_embedding_at"):
            load_checkpoint(make(position_embedding_at="every_layer"), file)


def test_a_model_without_blocks_keeps_the_options_of_blocks(tmp_path):
    model = make(num_layers=0, qkv_bias=False)
    again = model_from_checkpoint(save(model, tmp_path / "toy.safetensors", format="toy"), num_heads=2, mlp_dim=24)
    assert again.config == model.config  # `qkv_bias` was True
