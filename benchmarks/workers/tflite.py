"""Inference of one image with a TFLite file in float32 or dynamic_int8: `tflite.py SYSTEM WORK`."""

import dataclasses
import os
import tempfile

from worker import CLASSES, Step, Work, keras_hub_model, serve


def keras_vit(work: Work) -> Step:
    """Return an inference with the file of this package's converter."""
    from keras_vit import create_model
    from keras_vit.exporting import tflite
    from keras_vit.inference import ModelCard

    model = create_model(work.model, classes=CLASSES)
    card = ModelCard((), "", "softmax", (work.image_size, work.image_size, 3), precision=work.precision)
    return _caller(tflite.convert(model, card), work)


def keras_hub(work: Work) -> Step:
    """Return an inference with keras-hub's classifier, exported by Keras' LiteRT export."""
    import tensorflow as tf

    model = keras_hub_model(dataclasses.replace(work, precision="float32"))
    options = {} if work.precision == "float32" else {"optimizations": [tf.lite.Optimize.DEFAULT]}
    size = (1, work.image_size, work.image_size, 3)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.tflite")
        signature = [tf.TensorSpec(size, tf.float32, name="images")]
        model.export(path, format="litert", input_signature=signature, verbose=False, **options)
        with open(path, "rb") as file:
            return _caller(file.read(), work)


def _caller(content, work):
    import numpy as np
    import tensorflow as tf

    interpreter = tf.lite.Interpreter(model_content=content, num_threads=os.cpu_count())
    interpreter.allocate_tensors()
    size = (1, work.image_size, work.image_size, 3)
    images = np.random.default_rng(0).uniform(-1, 1, size).astype(np.float32)
    entry, output = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]

    def step():
        interpreter.set_tensor(entry, images)
        interpreter.invoke()
        interpreter.get_tensor(output)
        return {"note": f"file of {len(content) / 1e6:.0f} MB"}

    return step


if __name__ == "__main__":
    serve({"keras_vit": keras_vit, "keras_hub": keras_hub})
