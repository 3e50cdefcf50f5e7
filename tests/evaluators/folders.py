"""A run on a folder of images, one possibly damaged."""

import numpy as np
import tensorflow as tf

from keras_vit import models, recipe
from keras_vit.runs import run_directory

CLASSES = (r"$\frac{$", "flower")
PP = "decode|resize(8)|value_range(-1, 1)"


def write_images(directory, count=6, damaged=("test",)):
    """Write `count` images per class and split; the second image of the first class is damaged in some splits.

    Returns:
        The damaged files.
    """
    rng = np.random.default_rng(0)
    broken = []
    for split in ("train", "test"):
        for class_name in CLASSES:
            folder = directory / split / class_name
            folder.mkdir(parents=True)
            for index in range(count):
                image = rng.integers(0, 256, (10, 12, 3)).astype("uint8")
                (folder / f"image {index}.png").write_bytes(tf.io.encode_png(image).numpy())
        if split in damaged:
            path = directory / split / CLASSES[0] / "image 1.png"
            path.write_bytes(path.read_bytes()[:60])
            broken.append(path)
    return broken


def write_run(directory, images, on_bad_image="error"):
    """Write the files of a training run on the images, with random weights."""
    model = models.VisionTransformer(
        patch_size=4, hidden_size=8, num_layers=1, num_heads=2, mlp_dim=16, image_size=8, classes=len(CLASSES)
    )
    model.class_names = CLASSES
    directory.mkdir(parents=True, exist_ok=True)
    run_directory.save_model(model, str(directory))
    data = recipe.Data(source=f"folder:{images}", pp_train=PP, pp_eval=PP, on_bad_image=on_bad_image)
    description = {"name": data.source, "class_names": list(CLASSES), "num_classes": len(CLASSES), "num_train": 12}
    run_directory.write_config(
        str(directory), recipe.Recipe(data=data), {**description, "num_eval": 12, "label_kind": "class"}
    )
    (directory / run_directory.METRICS).write_text("")
