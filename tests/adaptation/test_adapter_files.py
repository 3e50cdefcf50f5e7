"""Adapter files of peft: golden files, every naming scheme against merged base models, and rejected files."""

import json
import os
import re
import shutil

import keras
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.adaptation import adapter_config
from keras_vit.checkpoints import CheckpointError, model_from_checkpoint
from keras_vit.runs import run_directory
from tests import tiny
from tests.checkpoints import files
from tests.models.dense_head import DenseHead

LORA = files.GOLDEN / "lora"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Float32 sums in another order.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def write_adapter(path, tensors, **config):
    os.makedirs(path, exist_ok=True)
    save_file({f"base_model.model.{name}": np.ascontiguousarray(t) for name, t in tensors.items()}, path / WEIGHTS)
    (path / CONFIG).write_text(json.dumps({"peft_type": "LORA", **config}))
    return path


def golden_parts():
    tensors = {name.removeprefix("base_model.model."): t for name, t in load_file(LORA / "adapter" / WEIGHTS).items()}
    return tensors, json.loads((LORA / "adapter" / CONFIG).read_text())


def layers_with_lora(model):
    return [layer for layer in model._flatten_layers() if getattr(layer, "lora_enabled", False)]


@pytest.mark.slow
def test_adapter_of_peft_gives_the_outputs_of_peft(tmp_path):
    golden = np.load(LORA / "io.npz")
    model, images = model_from_checkpoint(LORA / "base"), golden["image"]
    np.testing.assert_allclose(model.predict(images, verbose=0), golden["base_logits"], **TOLERANCE)
    keras_vit.load_adapter(model, LORA / "adapter")
    np.testing.assert_allclose(model.predict(images, verbose=0), golden["logits"], **TOLERANCE)
    assert {weight.name for weight in model.trainable_weights} == {"lora_kernel_a", "lora_kernel_b", "kernel", "bias"}
    assert len(model.trainable_weights) == 2 * 4 + 2  # queries and values of two blocks, and the head

    # Written with the same names, and every tensor equal bit for bit.
    path = keras_vit.save_adapter(model, tmp_path / "adapter")
    written, expected = load_file(os.path.join(path, WEIGHTS)), load_file(LORA / "adapter" / WEIGHTS)
    assert written.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(written[name], tensor)
    again = model_from_checkpoint(LORA / "base")
    keras_vit.load_adapter(again, keras_vit.save_adapter(model, tmp_path / "published", naming="published"))
    assert "encoder.layer.0.attention.attention.query" in " ".join(load_file(tmp_path / "published" / WEIGHTS))
    np.testing.assert_array_equal(np.asarray(again(images)), np.asarray(model(images)))

    keras_vit.merge_adapter(model)
    np.testing.assert_allclose(model.predict(images, verbose=0), golden["merged_logits"], **TOLERANCE)
    assert not layers_with_lora(model)


# Files with the names of one scheme each, and the matrices in their blocks.
SCHEMES = ("hf_vit", "hf_deit", "hf_dinov2_swiglu", "hf_dinov3_gated", "hf_siglip_classifier", "timm_vit")
SCHEMES += ("timm_vit_reg_ls", "timm_dinov2_giant", "timm_dinov3_plus", "timm_siglip")
IN_BLOCK = re.compile(r".*\b(layer|layers|blocks)\.(\d+)\..*")


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_adapter_of_every_matrix_equals_the_merged_base_model(name, tmp_path):
    rng, tensors, rslora = np.random.default_rng(0), load_file(files.golden_path(name)), name.startswith("hf_d")
    config = files.GOLDEN / f"{name}_config.json"
    config = json.loads(config.read_text()) if config.exists() else None
    arguments = {"num_heads": 4} if config is None else {}
    adapter, merged, ranks, alphas = {}, dict(tensors), {}, {}
    modules = [key.removesuffix(".weight") for key, t in tensors.items() if t.ndim == 2 and IN_BLOCK.fullmatch(key)]
    for index, module in enumerate(modules):
        outputs, inputs = tensors[f"{module}.weight"].shape
        rank, alpha = 1 + index % 4, 3 + index % 2
        ranks[module], alphas[module.rpartition("layer.")[2]] = rank, alpha
        a, b = (rng.normal(0, 0.3, shape).astype("float32") for shape in ((rank, inputs), (outputs, rank)))
        adapter |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
        merged[f"{module}.weight"] = tensors[f"{module}.weight"] + alpha / (rank**0.5 if rslora else rank) * b @ a
    folder = write_adapter(
        *(tmp_path / "adapter", adapter),
        **{"r": 2, "lora_alpha": 4, "rank_pattern": ranks, "alpha_pattern": alphas, "use_rslora": rslora},
        target_modules=modules,
    )
    base = model_from_checkpoint(files.write_directory(tmp_path / "base", tensors, config), **arguments)
    expected = model_from_checkpoint(files.write_directory(tmp_path / "merged", merged, config), **arguments)
    height, width = base.input_shape[1:3]
    images = rng.uniform(-1, 1, (2, height or 32, width or 32, 3)).astype("float32")
    before = np.asarray(base(images))
    keras_vit.load_adapter(base, folder)
    found = np.asarray(base(images))
    np.testing.assert_allclose(found, np.asarray(expected(images)), rtol=1e-4, atol=1e-4 * np.abs(found).max())
    assert np.abs(found - before).max() > 0.01 * np.abs(found).max()
    # After further training, query, key and value have different first factors, which are stacked in one matrix.
    for layer in layers_with_lora(base):
        layer.lora_kernel_a.assign(layer.lora_kernel_a + rng.normal(0, 0.1, layer.lora_kernel_a.shape))
    path = keras_vit.save_adapter(base, tmp_path / "written", naming="published" if name[:2] == "hf" else None)
    again = model_from_checkpoint(tmp_path / "base", **arguments)
    keras_vit.load_adapter(again, path)
    np.testing.assert_allclose(np.asarray(again(images)), np.asarray(base(images)), **TOLERANCE)


@pytest.mark.slow
def test_fused_qkv_adapter_round_trip(tmp_path):
    rng = np.random.default_rng(0)
    shapes = {"blocks.1.attn.qkv.lora_A.weight": (3, 16), "blocks.1.attn.qkv.lora_B.weight": (48, 3)}
    adapter = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    # In half precision, of the last block, without a head.
    stored = {name: array.astype(ml_dtypes.bfloat16) for name, array in adapter.items()}
    config = {"r": 3, "lora_alpha": 6, "target_modules": ["blocks.1.attn.qkv"]}
    model = tiny.model()
    keras_vit.load_adapter(model, write_adapter(tmp_path / "a", stored, **config))
    assert len(model.trainable_weights) == 6  # the head is frozen
    written = load_file(os.path.join(keras_vit.save_adapter(model, tmp_path / "b", format="timm"), WEIGHTS))
    for name, array in stored.items():
        np.testing.assert_array_equal(written[f"base_model.model.{name}"], array.astype("float32"))
    assert json.loads((tmp_path / "b" / CONFIG).read_text())["lora_alpha"] == 6


@pytest.mark.slow
@pytest.mark.parametrize("layers", ["value", "query|value", "key"])
def test_adapter_of_part_of_a_fused_qkv_matrix_round_trip(layers, tmp_path):
    model, images = tiny.model(), np.random.default_rng(0).normal(size=(2, tiny.SIZE, tiny.SIZE, 3)).astype("float32")
    keras_vit.adapt(model, f"lora(rank=2, alpha=3, layers='{layers}')")
    for index, layer in enumerate(layers_with_lora(model)):
        layer.lora_kernel_b.assign(np.random.default_rng(index).normal(size=layer.lora_kernel_b.shape))
        layer.lora_alpha = 3 + index  # also the scales differ
    folder = keras_vit.save_adapter(model, tmp_path, format="timm")
    other = tiny.model()
    keras_vit.load_adapter(other, folder)
    np.testing.assert_allclose(np.asarray(other(images)), np.asarray(model(images)), **TOLERANCE)


def test_written_adapter_configuration_has_the_fields_of_peft():
    """peft reads the most frequent rank and alpha of the modules, and a list of the others."""
    scales = {"a.query": (8, 16), "b.query": (4, 16), "c.query": (8, 16), "c.value": (8, 8)}
    found = adapter_config.document(scales, ["classifier"], "hf:google/vit@v1")
    assert found == {
        **{"peft_type": "LORA", "bias": "none", "inference_mode": True, "r": 8, "lora_alpha": 16},
        **{"rank_pattern": {"b.query": 4}, "alpha_pattern": {"c.value": 8}},
        **{"target_modules": list(scales), "modules_to_save": ["classifier"]},
        **{"base_model_name_or_path": "google/vit", "revision": "v1"},
    }
    bases = {None: (None, None), "hf:a/b": ("a/b", None), "models/mine@home.npz": ("models/mine@home.npz", None)}
    for base, expected in bases.items():
        found = adapter_config.document(scales, [], base)
        assert (found["base_model_name_or_path"], found["revision"]) == expected
        assert found["modules_to_save"] is None


def adapter_fields(folder, **fields):
    """The configuration with these fields, without any weights."""
    (folder / CONFIG).write_text(json.dumps({"peft_type": "LORA", **fields}))
    return adapter_config.AdapterConfig(str(folder))


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("r", [1, 2**31 - 1], [0, -1, 2**31, True, 1.0]),
        ("lora_alpha", [0, 1.5, -1], [float("inf"), True, "1"]),
        ("rank_pattern", [{}, {"a.b": 1}], [{"a": 0}, {"(a+)+": 1}, ["a"]]),
        ("alpha_pattern", [{"a.b": 1.5}], [{"a": "1"}, {"a|b": 1}]),
        ("target_modules", [["a.b"]], ["query", ".*query", 1, ["a*"], [1]]),
        ("exclude_modules", [None, []], ["query", ["query"]]),
        ("layers_to_transform", [None], [1, [0, 1]]),
        ("layers_pattern", [None, []], ["layer", ["layer"]]),
        ("modules_to_save", [["classifier"]], ["classifier", ["(a+)+"]]),
        ("init_lora_weights", [True, False, "gaussian"], ["pissa"]),
    ],
)
def test_fields_out_of_range_are_refused(field, good, bad, tmp_path):
    for value in good:
        adapter_fields(tmp_path, **{field: value})
    for value in bad:
        with pytest.raises(CheckpointError, match=f"{field} must be .* Received: {field}="):
            adapter_fields(tmp_path, **{field: value})


QUERIES = ("query", "layer.0.attn.query", "layer.1.attn.query", "blocks.1.query", "layer.1.xquery")


@pytest.mark.parametrize(
    ("fields", "targets"),
    [
        ({"target_modules": ["query"]}, QUERIES[:4]),
        ({"target_modules": ["attn.query", "xquery"]}, (*QUERIES[1:3], QUERIES[4])),
        ({"target_modules": ["layer.1.attn.query"]}, QUERIES[2:3]),
        ({"target_modules": ["query"], "modules_to_save": ["layer"]}, (QUERIES[0], QUERIES[3])),
    ],
)
def test_target_modules_match_as_in_peft(fields, targets, tmp_path):
    """As in peft's `check_target_module_exists`, the entries of a list are suffixes of module names."""
    config = adapter_fields(tmp_path, **fields)
    assert tuple(module for module in QUERIES if config.is_target(module)) == targets


def test_modules_to_save_and_rank_and_alpha_patterns_are_read(tmp_path):
    config = adapter_fields(
        tmp_path,
        **{"modules_to_save": ["classifier"], "r": 4, "lora_alpha": 12},
        **{"rank_pattern": {"query": 9, "layer.1.key": 2}, "alpha_pattern": {"key": 5}},
    )
    saved = {
        "classifier": True,
        "a.classifier": True,
        "classifier.dense": True,
        "classifiers": False,
        "aclassifier": False,
    }
    assert {module: config.is_saved(module) for module in saved} == saved
    expected = {
        "a.query": (9, 12),
        "aquery": (4, 12),
        "a.query.b": (4, 12),
        "a.layer.1.key": (2, 5),
        "layer.3.key": (4, 5),
    }
    assert {module: config.rank_and_alpha(module) for module in expected} == expected
    config = adapter_fields(tmp_path, use_rslora=True, r=9, lora_alpha=2)  # the scale is alpha / sqrt(rank)
    assert config.rank_and_alpha("query") == (9, 6.0)
    assert adapter_fields(tmp_path).rank_and_alpha("query") == (8, 8)  # the defaults of peft


REFUSED_FIELDS = {
    "peft_type": "IA3",
    "use_dora": True,
    "lora_bias": True,
    "bias": "all",
    "fan_in_fan_out": True,
    "trainable_token_indices": [0],
    "layer_replication": [[0, 1]],
    "target_parameters": ["mlp.weight"],
    "init_lora_weights": "pissa",
    "a_field_of_next_year": {"on": 1},
    "modules_to_save": ["classifier", "layernorm"],
    "target_modules": ["q_proj"],  # there are factors for values, too
    "exclude_modules": ".*v_proj",
    "layers_to_transform": 0,
    "rank_pattern": {"layers.1.attention.q_proj": 3},
    "alpha_pattern": {"(": 1},
    "r": "4",
    "lora_alpha": float("nan"),
    "use_rslora": "yes",
}


@pytest.mark.parametrize("field", REFUSED_FIELDS)
def test_unknown_arguments_are_rejected_by_name(field, tmp_path):
    tensors, config = golden_parts()
    if field == "modules_to_save":
        tensors["vit.layernorm.weight"] = np.ones(32, "float32")
    folder = write_adapter(tmp_path, tensors, **{**config, field: REFUSED_FIELDS[field]})
    model = model_from_checkpoint(LORA / "base")
    before = [variable.numpy() for variable in model.variables]
    shown = "lora_A" if field == "rank_pattern" else field
    with pytest.raises(CheckpointError, match=shown):
        keras_vit.load_adapter(model, folder)
    assert not layers_with_lora(model)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


A_FACTOR = "vit.layers.0.attention.q_proj.lora_B.weight"
REFUSED_TENSORS = {
    "shape": ({A_FACTOR: np.ones((32, 5), "float32")}, A_FACTOR),
    "integers": ({A_FACTOR: np.ones((32, 4), "int32")}, A_FACTOR),
    "nan": ({A_FACTOR: np.full((32, 4), np.nan, "float32")}, A_FACTOR),
    "missing": ({A_FACTOR: None}, A_FACTOR),
    "unknown": ({"text.layers.0.q_proj.lora_A.weight": np.ones((4, 32), "float32")}, "text.layers.0.q_proj"),
    "convolution": (
        {"vit.embeddings.patch_embeddings.projection.lora_A.weight": np.ones((4, 3, 16, 16), "float32")},
        "patch_embeddings.projection",
    ),
    "magnitudes": ({"vit.layers.0.attention.q_proj.lora_magnitude_vector": np.ones(32, "float32")}, "magnitude_vector"),
    "classes": (
        {"classifier.weight": np.ones((6, 32), "float32"), "classifier.bias": np.ones(6, "float32")},
        "classes",
    ),
    "many": ({f"layer.{index}.lora_A.weight": np.ones(1, "float32") for index in range(400)}, "factors"),
}


@pytest.mark.parametrize("case", REFUSED_TENSORS)
def test_tensors_that_do_not_match_the_model_are_refused(case, tmp_path):
    tensors, config = golden_parts()
    changes, message = REFUSED_TENSORS[case]
    tensors = {name: tensor for name, tensor in {**tensors, **changes}.items() if tensor is not None}
    model = model_from_checkpoint(LORA / "base")
    with pytest.raises(CheckpointError, match=re.escape(message)):
        keras_vit.load_adapter(model, write_adapter(tmp_path, tensors, **config))
    assert not layers_with_lora(model)


def test_truncated_and_missing_files_are_refused(tmp_path):
    model = model_from_checkpoint(LORA / "base")
    shutil.copytree(LORA / "adapter", tmp_path / "cut")
    content = (tmp_path / "cut" / WEIGHTS).read_bytes()
    (tmp_path / "cut" / WEIGHTS).write_bytes(content[:-10])
    with pytest.raises(CheckpointError, match="truncated"):
        keras_vit.load_adapter(model, tmp_path / "cut")
    (tmp_path / "cut" / WEIGHTS).rename(tmp_path / "cut" / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="pickle"):
        keras_vit.load_adapter(model, tmp_path / "cut")
    for name in (WEIGHTS, CONFIG):
        (tmp_path / "cut" / "adapter_model.bin").unlink(missing_ok=True)
        with pytest.raises(FileNotFoundError, match=name):
            keras_vit.load_adapter(model, tmp_path / "cut")
        (tmp_path / "cut" / CONFIG).unlink(missing_ok=True)


@pytest.mark.slow
def test_loading_over_lora_of_other_layers_is_refused(tmp_path):
    model = model_from_checkpoint(LORA / "base")
    keras_vit.adapt(model, "lora(rank=4, layers='query|key')")
    with pytest.raises(CheckpointError, match="merge_adapter"):
        keras_vit.load_adapter(model, LORA / "adapter")
    keras_vit.merge_adapter(model)
    keras_vit.load_adapter(model, LORA / "adapter")
    keras_vit.load_adapter(model, LORA / "adapter")  # of the same layers and ranks


@pytest.mark.slow
def test_models_that_an_adapter_cannot_represent_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="without LoRA"):
        keras_vit.save_adapter(tiny.model(), tmp_path)
    model = tiny.model()
    keras_vit.adapt(model, "lora")
    model.get_layer("encoder_norm").trainable = True
    for weight in model.get_layer("encoder_norm").weights:
        weight.trainable = True
    with pytest.raises(CheckpointError, match="encoder_norm"):
        keras_vit.save_adapter(model, tmp_path)
    with pytest.raises(ValueError, match="format"):
        keras_vit.save_adapter(model, tmp_path, format="google")
    assert not os.listdir(tmp_path)


@pytest.mark.slow
def test_adapter_on_a_quantized_base_model_round_trip(tmp_path):
    golden = np.load(LORA / "io.npz")
    model = model_from_checkpoint(LORA / "base")
    model.quantize("int8", filters=lambda layer: layer.name != "head")
    keras_vit.load_adapter(model, LORA / "adapter")
    # Eight bits per weight of a network of width 32.
    np.testing.assert_allclose(np.asarray(model(golden["image"])), golden["logits"], atol=0.1)
    written = load_file(os.path.join(keras_vit.save_adapter(model, tmp_path), WEIGHTS))
    for name, tensor in load_file(LORA / "adapter" / WEIGHTS).items():
        np.testing.assert_array_equal(written[name], tensor)


@pytest.mark.slow
def test_saved_model_keeps_the_adapter(tmp_path):
    golden = np.load(LORA / "io.npz")
    model = model_from_checkpoint(LORA / "base")
    keras_vit.load_adapter(model, LORA / "adapter")
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(np.asarray(again(golden["image"])), np.asarray(model(golden["image"])))
    assert [w.path for w in again.trainable_weights] == [w.path for w in model.trainable_weights]


@pytest.mark.slow
def test_run_writes_its_adapter_next_to_the_model(tmp_path, caplog):
    model = model_from_checkpoint(LORA / "base")
    keras_vit.load_adapter(model, LORA / "adapter")
    run_directory.save_model(model, str(tmp_path / "run"), base="hf:google/vit@main")
    config = json.loads((tmp_path / "run" / "adapter" / CONFIG).read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("google/vit", "main")
    assert load_file(tmp_path / "run" / "adapter" / WEIGHTS).keys() == load_file(LORA / "adapter" / WEIGHTS).keys()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{"position_embedding": "sincos2d"}, {"qk_norm": True, "mlp": "swiglu"}])
def test_models_that_no_other_project_has_are_saved_without_an_adapter(arguments, tmp_path, caplog):
    model = tiny.model(**arguments)
    keras_vit.adapt(model, "lora(rank=2, layers='.')")
    run_directory.save_model(model, str(tmp_path))
    assert os.listdir(tmp_path) == ["model.keras"] and next(iter(arguments)) in caplog.text
    for format in (None, "timm"):
        with pytest.raises(CheckpointError, match=next(iter(arguments))):
            keras_vit.save_adapter(model, tmp_path / "adapter", format=format)


@pytest.mark.slow
def test_model_with_a_custom_head_is_saved_without_an_adapter(tmp_path, caplog):
    model = tiny.model(head=DenseHead(3))
    keras_vit.adapt(model, "lora")
    run_directory.save_model(model, str(tmp_path))
    assert os.listdir(tmp_path) == ["model.keras"] and "No adapter" in caplog.text
