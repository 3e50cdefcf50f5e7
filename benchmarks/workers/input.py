"""Input pipelines from JPEG files to training batches of 224 x 224 pixels, with random crops and flips.

Pixels are in 0..255, because each system normalizes them on the training device. A step takes `batch` images from a new
iterator and then closes the iterator, so that no pipeline prefetches during the step of another pipeline.
"""

import os

from worker import Step, Work, serve

SIZE = 224


def keras_vit(work: Work) -> Step:
    """Return a step of the batches of `keras-vit train`, or of normalized batches for `model.fit` with `as_tuples`."""
    from keras_vit import data

    source = data.open_source(f"folder:{work.folder}#test_fraction=0")
    scaled, as_tuples = (work.arguments.get(name, False) for name in ("scaled", "as_tuples"))
    pp = f"decode_jpeg_and_inception_crop({SIZE}, scaled={scaled})|flip_lr|value_range(-1, 1)"
    return _epoch(work, data.train_batches(source, pp, work.arguments["batch_size"], as_tuples=as_tuples))


def keras_directory(work: Work) -> Step:
    """Return a step of `image_dataset_from_directory` at its default size, with Keras' layers for crops and flips."""
    import keras
    import tensorflow as tf

    batches = keras.utils.image_dataset_from_directory(
        work.folder, batch_size=work.arguments["batch_size"], verbose=False
    )
    augment = keras.Sequential([keras.layers.RandomCrop(SIZE, SIZE), keras.layers.RandomFlip("horizontal")])
    batches = batches.map(lambda images, labels: (augment(images, training=True), labels), tf.data.AUTOTUNE)
    return _epoch(work, batches.repeat().prefetch(tf.data.AUTOTUNE))


def keras_hub_guide(work: Work) -> Step:
    """Return a step of `tf.data` as in "Image Classification with KerasHub", from files and without rotation."""
    import keras
    import tensorflow as tf

    resize, flip = keras.layers.Resizing(SIZE, SIZE, crop_to_aspect_ratio=True), keras.layers.RandomFlip()
    crop = keras.layers.RandomCrop(int(SIZE * 0.9), int(SIZE * 0.9))

    def load(path):
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        label = tf.strings.split(path, os.sep)[-2] == "b"
        return {"images": resize(tf.cast(image, tf.float32)), "labels": tf.one_hot(tf.cast(label, tf.int32), 2)}

    def augment(inputs):
        images = inputs["images"]
        for layer in (flip, crop, resize):
            images = layer(images)
        return images, inputs["labels"]

    size = work.arguments["batch_size"]
    paths = tf.data.Dataset.list_files(f"{work.folder}/*/*.jpg").repeat().shuffle(16 * size)
    batches = paths.map(load, tf.data.AUTOTUNE).batch(size)
    return _epoch(work, batches.map(augment, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE))


def timm(work: Work) -> Step:
    """Return a step of timm's `create_loader` with one process per core. It uses torchvision and Pillow."""
    import timm.data
    import torch

    images = timm.data.create_dataset("", root=work.folder, is_training=True)
    images = torch.utils.data.ConcatDataset([images] * -(-work.batch // len(images)))
    images.transform = None  # set by the loader
    parts, size = images.datasets, work.arguments["batch_size"]
    loader = timm.data.create_loader(
        images, SIZE, size, is_training=True, color_jitter=None, num_workers=_cores(), device=torch.device("cpu")
    )
    for part in parts:
        part.transform = images.transform

    def step():
        for pixels, _ in loader.loader:  # without the wrapper that normalizes on the device
            assert pixels.shape[1:] == (3, SIZE, SIZE), pixels.shape

    return step


def _epoch(work: Work, batches) -> Step:
    """Return a step that takes its images from the start of a dataset."""
    batches = batches.take(work.batch // work.arguments["batch_size"])

    def step():
        for batch in batches:
            images = batch["image"] if isinstance(batch, dict) else batch[0]
            assert images.shape[1:] == (SIZE, SIZE, 3), images.shape

    return step


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    serve({function.__name__: function for function in (keras_vit, keras_directory, keras_hub_guide, timm)}, warm_up=1)
