"""Malicious and valid `.keras` files, on every path that opens them."""

import json
import pathlib
import resource
import shutil
import subprocess
import threading
import zipfile

import h5py
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inference
from keras_vit.checkpoints import CheckpointError, architecture, architecture_of
from keras_vit.checkpoints.families import keras as keras_family
from keras_vit.checkpoints.formats import keras as formats_keras
from keras_vit.checkpoints.formats.keras import KerasFile
from keras_vit.checkpoints.keras_files import load_keras_file
from keras_vit.runs import load_run
from tests import tiny

RUN = pathlib.Path(__file__).parents[1] / "runs" / "data" / "run"
STORED = [RUN / "model.keras", RUN.parents[2] / "data_files" / "vit.keras"]
MAX_KILOBYTES = 200_000


def vit(**arguments):
    return keras_vit.VisionTransformer(8, 16, 1, 2, 32, image_size=16, classes=3, **arguments)


def mae():
    return keras_vit.MaskedAutoencoder(
        8, 16, 1, 2, 32, image_size=16, decoder_hidden_size=8, decoder_num_layers=1, decoder_num_heads=2
    )


def bit():
    return keras_vit.BiTResNet((1,), 1, image_size=32, classes=3)


def dense():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="dense")])


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    """Valid files by the function that makes their model."""
    folder = tmp_path_factory.mktemp("valid")
    for make in (vit, mae, bit, dense):
        make().save(folder / f"{make.__name__}.keras")
    return folder


def rewrite(source, target, config=None, weights=None, extra=()):
    """Copy a file with other members: functions of the parsed configuration and of the open HDF5 file."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "config.json" and config is not None:
                changed = config(json.loads(content))
                content = changed if isinstance(changed, bytes) else json.dumps(changed)
            if name == "model.weights.h5" and weights is not None:
                path = target.with_suffix(".h5")
                path.write_bytes(content)
                with h5py.File(path, "a") as file:
                    weights(file)
                content = path.read_bytes()
            new.writestr(name, content)
        for name, content in extra:
            new.writestr(name, content, zipfile.ZIP_DEFLATED, 1)


def arguments(**changes):
    return lambda config: {**config, "config": {**config["config"], **changes}}


def layer(class_name, module="keras.layers", **settings):
    """The configuration of a model with one more layer."""

    def change(config):
        config["config"]["layers"].append(
            {"module": module, "class_name": class_name, "config": settings, "registered_name": None}
        )
        return config

    return change


def called(module, name):
    return lambda config: {"module": module, "class_name": name, "config": {"command": "touch MARKER"}}


def function(name):
    return {"module": "builtins", "class_name": "function", "config": name, "registered_name": "function"}


def first_dataset(file):
    found = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return found[0]


def replaced(make):
    def change(file):
        name = first_dataset(file)
        shape = file[name].shape
        del file[name]
        make(file, name, shape)

    return change


def link(kind):
    return replaced(lambda file, name, shape: file.__setitem__(name, kind))


def external(file, name, shape):
    file.create_dataset(name, shape, "f4", external=[("/etc/passwd", 0, 2**16)])


def virtual(file, name, shape):
    layout = h5py.VirtualLayout(shape, "f4")
    layout[...] = h5py.VirtualSource("/etc/passwd", "x", shape)
    file.create_virtual_dataset(name, layout)


def reference(file, name, shape):
    file.create_dataset(name, shape, h5py.ref_dtype)


def shape_bomb(file, name, shape):
    file.create_dataset(name, (2**20, 2**20), "f4", chunks=(2**10, 2**10))


def zero_bomb(file, name, shape):
    file.create_dataset(name, (2**14, 2**14), "f4", compression="gzip")


def deep(levels):
    return lambda config: b'{"a":' * levels + b"1" + b"}" * levels


def text_file(config):
    return layer("StringLookup", vocabulary="/etc/passwd")(config)


def many_objects(config):
    config["config"]["layers"] *= 40_000
    return config


def under_another_name(config):
    changed = arguments(hidden_size=2**20)(config)
    return {**changed, "class_name": "Functional", "module": "keras.src.models.functional"}


def changed_layers(config):
    return arguments(hidden_size=2**16, layers={"head": {"trainable": False}})(config)


# Name: (source, what is rewritten)
CRAFTED = {
    "a million blocks": ("vit", {"config": arguments(num_layers=10**6)}),
    "a width of a million": ("vit", {"config": arguments(hidden_size=2**20)}),
    "a width of a million under another name": ("vit", {"config": under_another_name}),
    "a width of 65,536 and changed layers": ("vit", {"config": changed_layers}),
    "an activation that is a Lambda": ("vit", {"config": arguments(activation={"class_name": "Lambda"})}),
    "a wide MLP": ("vit", {"config": arguments(mlp_dim=2**18)}),
    "a billion classes": ("vit", {"config": arguments(classes=10**9)}),
    "a hundred million patches": ("vit", {"config": arguments(image_size=80_000)}),
    "as many sines and cosines": ("vit", {"config": arguments(image_size=80_000, position_embedding="sincos2d")}),
    "a representation of a million": ("vit", {"config": arguments(representation_size=10**6)}),
    "a million blocks of a decoder": ("mae", {"config": arguments(decoder_num_layers=10**6)}),
    "a decoder of a million": ("mae", {"config": arguments(decoder_hidden_size=2**20, decoder_num_heads=2)}),
    "a million units": ("bit", {"config": arguments(block_sizes=[10**6])}),
    "a width factor of a thousand": ("bit", {"config": arguments(width_factor=1000)}),
    "a billion units of a dense layer": ("dense", {"config": layer("Dense", name="large", units=10**9)}),
    "a hundred thousand objects": ("dense", {"config": many_objects}),
    "a configuration of 20 MB": ("vit", {"config": lambda config: json.dumps(config).encode() + b" " * 20_000_000}),
    "300 MB in an asset": ("vit", {"extra": [("assets/x", bytes(300_000_000))]}),
    "100,000 levels": ("vit", {"config": deep(100_000)}),
    "900 levels": ("vit", {"config": deep(900)}),
    "TorchModuleWrapper": ("dense", {"config": layer("TorchModuleWrapper", module={"x": 1})}),
    "TFSMLayer": ("dense", {"config": layer("TFSMLayer", filepath="/tmp")}),
    "os.system": ("vit", {"config": called("os", "system")}),
    "a function of a foreign module": ("vit", {"config": called("evil", "system")}),
    "a class of a foreign module": ("dense", {"config": layer("Evil", module="evil")}),
    "Lambda": (
        "dense",
        {"config": layer("Lambda", function={"class_name": "__lambda__", "config": {"code": "4wEAAAA=\n"}})},
    ),
    "get_file": (
        "dense",
        {
            "config": layer(
                "Lambda",
                function={"module": "keras.utils", "class_name": "function", "config": "get_file"},
                arguments={"origin": "file:///etc/passwd"},
            )
        },
    ),
    "a vocabulary of a file": ("dense", {"config": text_file}),
    "an external link": ("vit", {"weights": link(h5py.ExternalLink("/etc/passwd", "/x"))}),
    "a soft link": ("vit", {"weights": link(h5py.SoftLink("/layers"))}),
    "external storage": ("vit", {"weights": replaced(external)}),
    "a virtual data set": ("vit", {"weights": replaced(virtual)}),
    "object references": ("vit", {"weights": replaced(reference)}),
    "a shape of four terabytes": ("vit", {"weights": replaced(shape_bomb)}),
    "a gigabyte of zeros": ("vit", {"weights": replaced(zero_bomb)}),
}


@pytest.fixture
def no_code(tmp_path, monkeypatch):
    """A directory in which a file appears if code of a crafted file runs, and a check of the memory usage."""
    evil = f"open({str(tmp_path / 'MARKER')!r}, 'w')\nclass Evil: pass\ndef system(command): pass\n"
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "evil.py").write_text(evil)
    monkeypatch.syspath_prepend(tmp_path / "evil")
    monkeypatch.chdir(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield tmp_path
    assert not list(tmp_path.rglob("MARKER"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + MAX_KILOBYTES


@pytest.mark.parametrize(
    ("layers", "keeps"),
    [
        ({"block": {"trainable": False, "weights": {"bias": True}, "lora": {"rank": 2}}}, True),
        ({"block": {"sublayers": {"mlp": {"trainable": False, "sublayers": {"dense": {"trainable": True}}}}}}, True),
        ({"block": {"dtype": "int8"}}, False),
        ({"block": {"sublayers": {"mlp": {"sublayers": {"dense": {"dtype": "int8"}}}}}}, False),
        ({"block": {"sublayers": ["mlp"]}}, False),
        ({"block": {"trainable": 0}}, False),
        ({"block": {"weights": {"bias": None}}}, False),
        ({"block": {"weights": ["bias"]}}, False),
        ({"block": "mlp"}, False),
        (["block"], False),
    ],
)
def test_models_changed_by_more_than_freezing_and_lora_are_refused(layers, keeps):
    assert keras_family._keeps_weights(layers) is keeps


@pytest.mark.parametrize("depth", [12, 13])
def test_groups_nested_more_than_twelve_deep_are_refused(depth, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        vars_ = file.create_group("/".join(["group"] * depth) + "/vars")
        vars_["0"] = np.ones(2, "float32")
        if depth == 12:
            assert [(layers, index) for layers, index, _ in formats_keras._walk(file)] == [(["group"], "0")]
        else:
            with pytest.raises(ValueError, match="more than 12 levels"):
                list(formats_keras._walk(file))


@pytest.mark.slow
def test_file_system_that_does_not_respond_is_reported(tmp_path, monkeypatch):
    def run(command, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    vit().save_weights(tmp_path / "a.weights.h5")
    monkeypatch.setattr(formats_keras.subprocess, "run", run)
    with pytest.raises(CheckpointError, match="a.weights.h5 could not be read within 600 s. Try again"):
        architecture_of(tmp_path / "a.weights.h5")


@pytest.fixture
def probed_once(monkeypatch):
    """The process that checks HDF5 files starts once per content, although three functions open the same file."""
    probe, seen = KerasFile._probe, set()

    def probe_once(self, *part):
        content = pathlib.Path(self.path).read_bytes()
        if content not in seen:
            probe(self, *part)
        seen.add(content)

    monkeypatch.setattr(KerasFile, "_probe", probe_once)


def ways(path, decoder):
    """Every way to open a file: by itself, as the model of a run, and as a checkpoint."""
    run = path.parent / "run"
    run.mkdir()
    shutil.copy(RUN / "config.json", run)
    shutil.copy(path, run / "model.keras")
    return [
        (path, lambda: inference.open_predictor(path, preprocess="value_range(-1, 1)")),
        (run / "model.keras", lambda: load_run(str(run))),
        (path, lambda: keras_vit.model_from_checkpoint(path, decoder=decoder)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_files_are_refused_before_they_take_memory(name, valid, no_code, probed_once):
    source, changes = CRAFTED[name]
    path = no_code / "model.keras"
    rewrite(valid / f"{source}.keras", path, **changes)
    for file, open_it in ways(path, decoder=source == "mae"):
        with pytest.raises(ValueError, match=str(file)):
            open_it()


def cut(path):
    path.write_bytes(path.read_bytes()[:-500])


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def of_weights(path):
    path.unlink()
    vit().save_weights(path.with_suffix(".weights.h5"))
    path.with_suffix(".weights.h5").rename(path)


@pytest.mark.parametrize("damage", [cut, flipped, of_weights, lambda path: path.write_bytes(b"")])
def test_damaged_files_are_reported(damage, valid, tmp_path):
    path = shutil.copy(valid / "vit.keras", tmp_path / "model.keras")
    damage(path)
    with pytest.raises(ValueError, match=f"{path} cannot be loaded"):
        load_keras_file(path)


@pytest.mark.slow
def test_members_with_paths_outside_the_archive_are_not_extracted(valid, no_code):
    path = no_code / "deep" / "model.keras"
    path.parent.mkdir()
    rewrite(valid / "vit.keras", path, extra=[("../MARKER", "x"), ("assets/../../MARKER", "x")])
    load_keras_file(path)


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["Lambda", "TorchModuleWrapper", "TFSMLayer"])
def test_safe_mode_applies_even_if_the_process_disabled_it(layer, valid, tmp_path):
    path = tmp_path / "model.keras"
    rewrite(valid / "dense.keras", path, **CRAFTED[layer][1])
    errors = []

    def load():
        keras.config.enable_unsafe_deserialization()  # in this thread
        try:
            load_keras_file(path)
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert "can run code" in errors[0]


def quantized():
    model = vit(include_top=True)
    model.quantize("int8")
    return model


def around():
    base = vit(include_top=False)
    return keras.Model(base.input, keras.layers.Dense(2)(base.output))


def headless():
    return keras_vit.VisionTransformer(8, 16, 1, 2, 32, image_size=None, include_top=False, position_embedding="none")


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [vit, mae, bit, dense, pytest.param(quantized, marks=pytest.mark.slow), around, headless]
)
def test_valid_files_load_bit_for_bit(make, tmp_path):
    keras.utils.set_random_seed(1)
    model = make()
    model.save(tmp_path / "model.keras")
    loaded = load_keras_file(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    assert len(loaded.variables) == len(model.variables)
    for mine, theirs in zip(loaded.variables, model.variables, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.parent.name)
def test_stored_files_of_older_versions_open(path):
    loaded, expected = load_keras_file(path), keras.saving.load_model(path)
    for mine, theirs in zip(loaded.variables, expected.variables, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"mlp": "swiglu"}, {"output_projection": "none", "qkv_bias": False}, {"head_dim": 6}, {"num_layers": 3}],
)
def test_the_weights_of_blocks_are_counted_from_the_arguments(arguments):
    """No file can build a model with more weights than the file contains."""
    model = tiny.model(**arguments)
    blocks = [layer for layer in model.layers if layer.name.startswith("encoderblock")]
    kernels = [weight for block in blocks for weight in block.weights if weight.path.endswith("kernel")]
    expected = sum(int(np.prod(kernel.shape)) for kernel in kernels)
    assert architecture.weights_of_blocks(model.config.to_dict()) == expected
