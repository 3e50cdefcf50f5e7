"""Written files open in `transformers`, `timm` and `vit-pytorch` and give the same logits, and vice versa.

Run with the extra [interop] installed: `pytest -m interop`.
"""

import importlib.machinery
import json
import sys
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import load_checkpoint, model_from_checkpoint, resize, save_checkpoint

pytestmark = pytest.mark.interop
# Float32 sums in two libraries' orders over a few layers of width 64.
TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}


class _Anything(type):
    """A class with every attribute."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _Stub(types.ModuleType):
    """Stub of torchvision, which is imported for data pipelines and models that are not used here."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}") or _Anything(name, (), {})


@pytest.fixture
def torch():
    return pytest.importorskip("torch", exc_type=ImportError)


@pytest.fixture
def transformers(torch):
    return pytest.importorskip("transformers", exc_type=ImportError)


@pytest.fixture
def torchvision(torch, monkeypatch):
    try:
        import torchvision  # noqa: F401
    except ImportError:
        names = ("", ".transforms", ".transforms.functional", ".datasets", ".ops", ".ops.misc", ".models", ".utils")
        names += (".models.feature_extraction", ".transforms.v2")
        for name in names:
            stub = _Stub(f"torchvision{name}")
            stub.__spec__ = importlib.machinery.ModuleSpec(stub.__name__, None)
            monkeypatch.setitem(sys.modules, stub.__name__, stub)


@pytest.fixture
def timm(torchvision):
    return pytest.importorskip("timm", exc_type=ImportError)


@pytest.fixture
def vit_pytorch(torchvision):
    return pytest.importorskip("vit_pytorch", exc_type=ImportError)


def small_vit(**arguments):
    defaults = dict(
        patch_size=8, hidden_size=64, num_layers=2, num_heads=4, mlp_dim=96, image_size=(32, 48), classes=5, seed=0
    )
    arguments = {**defaults, **arguments}
    seed = arguments.pop("seed")
    model = keras_vit.VisionTransformer(**arguments)
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        noise = rng.normal(scale=0.1, size=variable.shape).astype("float32")
        variable.assign(keras.ops.convert_to_numpy(variable.value) + noise)
    return model


def images_for(model, seed=1):
    height, width = model.inputs[0].shape[1:3]
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (2, height, width, model.inputs[0].shape[3])).astype("float32")


def torch_logits(torch, module, images):
    module.eval()
    with torch.no_grad():
        output = module(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    output = getattr(output, "logits", output)
    return output.numpy()


HF_MODELS = {
    "vit_tanh": ("ViTForImageClassification", {}),
    "vit_erf": ("ViTForImageClassification", {"activation": "gelu", "layer_norm_epsilon": 1e-12}),
    "vit_quick": ("ViTForImageClassification", {"activation": "quick_gelu"}),
    "no_qkv_bias": ("ViTForImageClassification", {"qkv_bias": False, "image_size": 32}),
    "deit_teacher": ("DeiTForImageClassificationWithTeacher", {"distillation_token": True}),
    "deit_plain": ("DeiTForImageClassification", {"distillation_token": "unused"}),
}


@pytest.mark.parametrize("naming", ["published", "later"])
@pytest.mark.parametrize("case", HF_MODELS)
def test_transformers_opens_written_files(case, naming, transformers, torch, tmp_path):
    class_name, arguments = HF_MODELS[case]
    model = small_vit(**arguments)
    save_checkpoint(model, tmp_path / "model", format="huggingface", naming=naming)
    module, info = getattr(transformers, class_name).from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    images = images_for(model)
    np.testing.assert_allclose(torch_logits(torch, module, images), np.asarray(model(images)), **TOLERANCE)


@pytest.mark.parametrize("case", HF_MODELS)
def test_files_of_transformers_are_read(case, transformers, torch, tmp_path):
    class_name, arguments = HF_MODELS[case]
    torch.manual_seed(0)
    deit = class_name.startswith("DeiT")
    config = (transformers.DeiTConfig if deit else transformers.ViTConfig)(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        image_size=32,
        patch_size=8,
        num_labels=5,
        qkv_bias=arguments.get("qkv_bias", True),
        hidden_act={"gelu_tanh": "gelu_pytorch_tanh"}.get(
            arguments.get("activation", "gelu_tanh"), arguments.get("activation", "gelu_tanh")
        ),
        layer_norm_eps=arguments.get("layer_norm_epsilon", 1e-6),
    )
    module = getattr(transformers, class_name)(config)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    module.save_pretrained(tmp_path / "model", max_shard_size="60KB")
    model = model_from_checkpoint(tmp_path / "model")
    images = images_for(model)
    np.testing.assert_allclose(np.asarray(model(images)), torch_logits(torch, module, images), **TOLERANCE)


TIMM_MODELS = {
    "plain": {"activation": "gelu"},
    "tanh": {},
    "gap": {"activation": "gelu", "pooling": "gap", "class_token": True, "norm_after_pooling": True},
    "gap_without_token": {"activation": "gelu", "pooling": "gap"},
    "map": {"activation": "gelu", "pooling": "map"},
    "map_with_registers": {"activation": "gelu", "pooling": "map", "num_registers": 2},
    "mean_of_all": {"activation": "gelu", "pooling": "gap", "class_token": True, "pool_prefix_tokens": True},
    "registers": {"activation": "gelu", "num_registers": 3, "layer_scale": 0.1},
    "distilled": {"activation": "gelu", "distillation_token": True},
    "no_bias": {"activation": "gelu", "qkv_bias": False},
    "quick": {"activation": "quick_gelu"},
}


@pytest.mark.parametrize("case", TIMM_MODELS)
def test_timm_opens_written_files(case, timm, torch, tmp_path):
    model = small_vit(**TIMM_MODELS[case])
    save_checkpoint(model, tmp_path / "model", format="timm")
    module = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True)
    images = images_for(model)
    np.testing.assert_allclose(torch_logits(torch, module, images), np.asarray(model(images)), **TOLERANCE)


VIT_PYTORCH = {
    "cls": {},
    "mean": {"pooling": "gap"},
    "head_dim": {"head_dim": 8},
    "one_head": {"num_heads": 1, "output_projection": "none", "channels": 1, "patch_size": (4, 6)},
    "simple": {"pooling": "gap", "position_embedding": "sincos2d", "output_projection": "no_bias", "head_dim": 24},
}


@pytest.mark.parametrize("case", VIT_PYTORCH)
def test_vit_pytorch_opens_written_files(case, vit_pytorch, torch, tmp_path):
    from safetensors.torch import load_file

    details = {"patch_norm": True, "qkv_bias": False, "activation": "gelu", "layer_norm_epsilon": 1e-5}
    model = small_vit(**{**details, **VIT_PYTORCH[case]})
    save_checkpoint(model, tmp_path / "model", format="vit_pytorch")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    arguments = {name: tuple(v) if isinstance(v, list) else v for name, v in config["arguments"].items()}
    module = getattr(vit_pytorch, config["class"])(**arguments)
    module.load_state_dict(load_file(tmp_path / "model" / "model.safetensors"))
    images = images_for(model)
    np.testing.assert_allclose(torch_logits(torch, module, images), np.asarray(model(images)), **TOLERANCE)


HYBRIDS = {
    "stem": ("vit_tiny_r_s16_p8_224", {"patch_size": 8, "resnet_blocks": ()}),
    "stages": ("vit_small_r26_s32_224", {"patch_size": 1, "resnet_blocks": (2, 2, 2, 2)}),
}


@pytest.mark.parametrize("case", HYBRIDS)
def test_hybrids_of_timm_are_read_and_written(case, timm, torch, tmp_path):
    name, arguments = HYBRIDS[case]
    torch.manual_seed(0)
    module = timm.create_model(name, embed_dim=64, depth=1, num_heads=4, num_classes=5, img_size=64)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    from safetensors.torch import save_file

    save_file(module.state_dict(), tmp_path / "model.safetensors")
    model = model_from_checkpoint(tmp_path / "model.safetensors", num_heads=4)
    assert model.get_config()["resnet_blocks"] == list(arguments["resnet_blocks"])
    images = images_for(model)
    expected = torch_logits(torch, module, images)
    np.testing.assert_allclose(np.asarray(model(images)), expected, **TOLERANCE)

    save_checkpoint(model, tmp_path / "written", format="timm")
    again = timm.create_model(f"local-dir:{tmp_path / 'written'}", pretrained=True)
    np.testing.assert_array_equal(torch_logits(torch, again, images), expected)


@pytest.mark.parametrize("no_embed_class", [False, True])
def test_registers_of_timm_have_position_embeddings(no_embed_class, timm, torch, tmp_path):
    torch.manual_seed(0)
    module = timm.create_model(
        "vit_base_patch16_224",
        img_size=32,
        patch_size=8,
        embed_dim=64,
        depth=1,
        num_heads=1,
        num_classes=5,
        reg_tokens=4,
        no_embed_class=no_embed_class,
    )
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    from safetensors.torch import save_file

    save_file(module.state_dict(), tmp_path / "model.safetensors")
    model = model_from_checkpoint(tmp_path / "model.safetensors")
    images = images_for(model)
    np.testing.assert_allclose(np.asarray(model(images)), torch_logits(torch, module, images), **TOLERANCE)


@pytest.mark.parametrize("sizes", [((7, 7), (12, 12)), ((14, 14), (9, 11)), ((6, 9), (24, 5))])
@pytest.mark.parametrize("method", ["bilinear", "bicubic", "antialiased"])
def test_position_resizing_matches_torch(method, sizes, torch):
    old, new = sizes
    table = np.random.default_rng(0).normal(size=(1, 1 + old[0] * old[1], 8)).astype("float32")
    grid = torch.from_numpy(table[:, 1:].reshape(1, *old, 8).transpose(0, 3, 1, 2).copy())
    mode = {"antialiased": "bicubic"}.get(method, method)
    expected = torch.nn.functional.interpolate(grid, new, mode=mode, antialias=method == "antialiased")
    expected = expected.numpy().transpose(0, 2, 3, 1).reshape(1, new[0] * new[1], 8)
    result = resize.resize_table(table, old, new, num_slots=1, method=method)
    # Weights in single precision there, in double here.
    np.testing.assert_allclose(result[:, 1:], expected, rtol=1e-4, atol=1e-5)


def test_dino_without_head_gives_the_outputs_of_transformers(transformers, torch, tmp_path):
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8
    )
    module = transformers.ViTModel(config, add_pooling_layer=False).eval()
    module.save_pretrained(tmp_path / "dino")
    model = model_from_checkpoint(tmp_path / "dino")
    images = images_for(model)
    with torch.no_grad():
        expected = module(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).last_hidden_state[:, 0].numpy()
    np.testing.assert_allclose(np.asarray(model(images)), expected, **TOLERANCE)
    classifier = small_vit(image_size=32, num_layers=1, activation="gelu", layer_norm_epsilon=1e-12)
    load_checkpoint(classifier, tmp_path / "dino", head="reset")
