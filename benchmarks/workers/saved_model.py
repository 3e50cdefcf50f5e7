"""A SavedModel through its serving signature, from JPEG bytes to probabilities: `saved_model.py SYSTEM WORK`."""

import json
import sys
import tempfile

from common import CLASSES, Work, keras_hub_network, serve, warmed

PREPROCESS = "decode|resize(224)|value_range(-1, 1)"
HEIGHT, WIDTH = 480, 640


def jpegs(count):
    """Returns `count` encoded pictures: smooth colours with some noise, so that they weigh what photographs do."""
    import numpy as np
    import tensorflow as tf

    generator = np.random.default_rng(0)
    contents = []
    for _ in range(count):
        coarse = tf.constant(generator.uniform(0, 255, (1, 12, 16, 3)), tf.float32)
        picture = tf.image.resize(coarse, (HEIGHT, WIDTH), "bicubic")[0] + generator.normal(0, 8, (HEIGHT, WIDTH, 3))
        contents.append(tf.io.encode_jpeg(tf.cast(tf.clip_by_value(picture, 0, 255), tf.uint8), quality=90).numpy())
    return contents


def keras_vit(work):
    """This package's export, with all that it answers: probabilities, labels of the largest, which were readable."""
    import tensorflow as tf

    from keras_vit import models
    from keras_vit.data import preprocess
    from keras_vit.exporting import signatures

    network = models.create_model(work.model, classes=CLASSES)
    names = tuple(f"class {index}" for index in range(CLASSES))
    size = (work.image_size, work.image_size, 3)
    module = signatures.ServingModule(network, preprocess.single_image(PREPROCESS), size, names)
    folder = tempfile.mkdtemp()
    signatures.write(module, folder, module.signatures())
    return _caller(tf, folder, "serving_default", "image_bytes", work)


def keras_hub(work):
    """keras-hub's classifier behind the same preprocessing, through Keras' ExportArchive."""
    import keras
    import tensorflow as tf

    network = keras_hub_network(work)
    size = (work.image_size, work.image_size)

    def prepare(content):
        picture = tf.io.decode_image(content, channels=3, expand_animations=False)
        picture.set_shape((None, None, 3))
        return tf.image.resize(tf.cast(picture, tf.float32), size) / 127.5 - 1.0

    def classify(image_bytes):
        images = tf.map_fn(prepare, image_bytes, fn_output_signature=tf.TensorSpec((*size, 3), tf.float32))
        return {"probabilities": tf.nn.softmax(network(images, training=False))}

    archive = keras.export.ExportArchive()
    archive.track(network)
    archive.add_endpoint("serve", classify, input_signature=[tf.TensorSpec((None,), tf.string, name="image_bytes")])
    folder = tempfile.mkdtemp()
    archive.write_out(folder, verbose=False)
    return _caller(tf, folder, "serving_default", "image_bytes", work)


def _caller(tf, folder, signature, argument, work):
    import shutil

    function = tf.saved_model.load(folder).signatures[signature]
    shutil.rmtree(folder)
    contents = tf.constant(jpegs(work.batch))
    return lambda: function(**{argument: contents})["probabilities"].numpy() is None


if __name__ == "__main__":
    systems = {"keras_vit": warmed(keras_vit), "keras_hub": warmed(keras_hub)}
    serve(systems, sys.argv[1], Work(**json.loads(sys.argv[2])))
