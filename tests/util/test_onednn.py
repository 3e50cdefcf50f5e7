"""TensorFlow's oneDNN operations: enabled before TensorFlow is imported; a warning if that is too late."""

import os
import subprocess
import sys

import pytest

from keras_vit.util import onednn


@pytest.mark.parametrize("chosen", [None, "0"])
@pytest.mark.parametrize("imported", [False, True])
@pytest.mark.parametrize("is_x86", [False, True])
def test_onednn_is_enabled_before_tensorflow_is_imported_unless_set(chosen, imported, is_x86, monkeypatch):
    monkeypatch.setattr(onednn, "_IS_X86", is_x86)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    if not imported:
        monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.setenv(onednn.VARIABLE, chosen or "")
    if chosen is None:
        monkeypatch.delenv(onednn.VARIABLE)
    onednn.turn_on()
    assert os.environ.get(onednn.VARIABLE) == chosen or (chosen is None and is_x86 and not imported)


@pytest.mark.skipif(not onednn._IS_X86, reason="TensorFlow's choice is kept on other processors")
def test_import_enables_onednn_before_keras_is_imported():
    code = (
        "import os, sys; sys.modules['keras'] = None\n"
        "try: import keras_vit\n"
        "except ImportError: print(os.environ['TF_ENABLE_ONEDNN_OPTS'])"
    )
    environment = {name: value for name, value in os.environ.items() if name != onednn.VARIABLE}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True).stdout
    assert shown.split() == [b"1"]


@pytest.mark.parametrize(
    ("is_on", "chosen", "is_x86", "device", "lines"),
    [
        (False, None, True, "CPU", 1),
        (True, None, True, "CPU", 0),
        (False, "0", True, "CPU", 0),
        (False, None, False, "CPU", 0),
        (False, None, True, "GPU", 0),
    ],
)
def test_disabled_onednn_is_logged_in_one_line(is_on, chosen, is_x86, device, lines, monkeypatch, caplog):
    import tensorflow as tf

    monkeypatch.setattr(onednn, "_IS_X86", is_x86)
    monkeypatch.setattr(onednn.sys, "platform", "linux")
    monkeypatch.setattr(onednn, "is_on", lambda: is_on)
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda: [tf.config.PhysicalDevice(f"/device:{device}:0", device)]
    )
    monkeypatch.setenv(onednn.VARIABLE, chosen or "")
    if chosen is None:
        monkeypatch.delenv(onednn.VARIABLE)
    onednn.advise.cache_clear()
    with caplog.at_level("WARNING", "absl"):
        for _ in range(2):
            onednn.advise()
    onednn.advise.cache_clear()
    assert [onednn.VARIABLE in record.getMessage() for record in caplog.records] == [True] * lines


@pytest.mark.slow
@pytest.mark.parametrize("value", ["0", "1"])
def test_tensorflow_reads_the_variable_of_onednn(value):
    """The function is not public."""
    code = "from keras_vit.util import onednn; import tensorflow; print(int(onednn.is_on()))"
    environment = {**os.environ, onednn.VARIABLE: value}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True).stdout
    assert sys.platform == "darwin" or shown.split() == [value.encode()]
