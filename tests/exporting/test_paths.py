"""The format of a path to write."""

import pytest

from keras_vit.exporting.verified_export import format_of
from keras_vit.inference import formats


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/digits.tflite", "tflite"),
        ("a/digits.onnx", "onnx"),
        ("a/digits.xml", "openvino"),
        ("a/digits", "saved_model"),
        ("a/v1.5", "saved_model"),
        ("a.b/digits", "saved_model"),
    ],
)
def test_extension_determines_the_format(path, name):
    assert format_of(path) is format_of(path, name) is formats.FORMATS[name]


def test_a_directory_of_versions_may_have_any_name(tmp_path):
    """Unless it exists, an extension of letters is taken for a file of a format that does not exist."""
    with pytest.raises(ValueError, match=r"`path` must end in \.tflite, \.onnx, \.xml.*a\.old"):
        format_of(str(tmp_path / "a.old"))
    assert format_of(str(tmp_path / "a.old"), "saved_model") is formats.SAVED_MODEL
    (tmp_path / "a.old").mkdir()
    assert format_of(str(tmp_path / "a.old")) is formats.SAVED_MODEL
