"""Serving signature of a SavedModel, from JPEG bytes to probabilities: `saved_model.py SYSTEM WORK`."""

import shutil
import tempfile

from worker import CLASSES, Step, Work, keras_hub_model, serve

PREPROCESS = "decode|resize(224)|value_range(-1, 1)"
HEIGHT, WIDTH = 480, 640


def jpegs(count: int) -> list[bytes]:
    """Return `count` encoded images of smooth colors with noise, whose file size is similar to a camera's files."""
    import numpy as np
    import tensorflow as tf

    generator = np.random.default_rng(0)
    contents = []
    for _ in range(count):
        coarse = tf.constant(generator.uniform(0, 255, (1, 12, 16, 3)), tf.float32)
        image = tf.image.resize(coarse, (HEIGHT, WIDTH), "bicubic")[0] + generator.normal(0, 8, (HEIGHT, WIDTH, 3))
        contents.append(tf.io.encode_jpeg(tf.cast(tf.clip_by_value(image, 0, 255), tf.uint8), quality=90).numpy())
    return contents


def keras_vit(work: Work) -> Step:
    """Return a request to this package's export with all outputs: probabilities, top labels and validity."""
    import tensorflow as tf

    from keras_vit import create_model
    from keras_vit.exporting import graph_ops, signatures
    from keras_vit.inference import ModelCard

    model = create_model(work.model, classes=CLASSES)
    names = tuple(f"class {index}" for index in range(CLASSES))
    size = (work.image_size, work.image_size, 3)
    card = ModelCard(names, PREPROCESS, "softmax", size, max_pixels=graph_ops.MAX_PIXELS)
    module = signatures.ServingModule(model, card)
    folder = tempfile.mkdtemp()
    signatures.write(module, folder, module.signatures())
    return _caller(tf, folder, "serving_default", "image_bytes", work)


def keras_hub(work: Work) -> Step:
    """Return a request to keras-hub's classifier after the same preprocessing, exported by Keras' ExportArchive."""
    import keras
    import tensorflow as tf

    model = keras_hub_model(work)
    size = (work.image_size, work.image_size)

    def prepare(content):
        image = tf.io.decode_image(content, channels=3, expand_animations=False)
        image.set_shape((None, None, 3))
        return tf.image.resize(tf.cast(image, tf.float32), size) / 127.5 - 1.0

    def classify(image_bytes):
        images = tf.map_fn(prepare, image_bytes, fn_output_signature=tf.TensorSpec((*size, 3), tf.float32))
        return {"probabilities": tf.nn.softmax(model(images, training=False))}

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", classify, input_signature=[tf.TensorSpec((None,), tf.string, name="image_bytes")])
    folder = tempfile.mkdtemp()
    archive.write_out(folder, verbose=False)
    return _caller(tf, folder, "serving_default", "image_bytes", work)


def _caller(tf, folder, signature, argument, work):
    function = tf.saved_model.load(folder).signatures[signature]
    shutil.rmtree(folder)
    contents = tf.constant(jpegs(work.batch))
    return lambda: function(**{argument: contents})["probabilities"].numpy() is None


if __name__ == "__main__":
    serve({"keras_vit": keras_vit, "keras_hub": keras_hub})
