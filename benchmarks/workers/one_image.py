"""One image, from preprocessed pixels to probabilities: `one_image.py SYSTEM WORK`.

The model and its exported files are opened and prepared as in `keras-vit serve`. timm's model runs with and without
`torch.compile`. Weights are random. The memory of an exported file includes its conversion. The OpenVINO file computes
in bfloat16 on processors with AVX512-BF16 or AMX, and in float32 on other processors.
"""

import os
import tempfile

from models import timm, timm_compiled
from worker import CLASSES, Step, Work, keras_policy, serve

PREPROCESS = "value_range(-1, 1)"


def keras_vit(work: Work) -> Step:
    """Return a prediction of this package's model from a `.keras` file."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        _model(work).save(path)
        return _predict(path, work, preprocess=PREPROCESS)


def saved_model(work: Work) -> Step:
    """Return a prediction of the SavedModel."""
    return _exported(work, "served", precision=work.precision)


def tflite(work: Work) -> Step:
    """Return a prediction of the TFLite file."""
    return _exported(work, "model.tflite")


def onnx(work: Work) -> Step:
    """Return a prediction of the ONNX file in ONNX Runtime."""
    return _exported(work, "model.onnx")


def openvino(work: Work) -> Step:
    """Return a prediction of the OpenVINO file."""
    return _exported(work, "model.xml", precision="mixed_bfloat16" if work.precision == "bfloat16" else "float32")


def _model(work):
    from keras_vit import create_model

    policy = keras_policy(work)
    return create_model(work.model, classes=CLASSES, image_size=work.image_size, dtype=policy, **work.arguments)


def _exported(work, name, **options):
    import numpy as np

    from keras_vit import exporting

    size = (2, work.image_size, work.image_size, 3)
    pixels = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)
        exporting.export(_model(work), path, images=pixels, preprocess=PREPROCESS, **options)
        return _predict(path, work)


def _predict(path, work, **options):
    import numpy as np

    from keras_vit.inference import open_predictor

    predictor = open_predictor(path, **options)
    predictor.prepare_for_many()
    shape = (1, work.image_size, work.image_size, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    images = pixels if predictor.card.input_dtype == "uint8" else pixels.astype(np.float32) / 127.5 - 1

    def step():
        predictor.predict(images)

    return step


if __name__ == "__main__":
    serve({system.__name__: system for system in (keras_vit, saved_model, tflite, onnx, openvino, timm, timm_compiled)})
