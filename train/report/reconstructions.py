"""Images to display for self-supervised pre-training: the input, its visible patches, and the reconstruction."""

import numpy as np
import tensorflow as tf
from keras import ops

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.data import preprocess
from keras_vit.models import MaskedModel
from keras_vit.tasks import patches


def reconstruct(model: MaskedModel, recipe: recipes.Recipe, images: np.ndarray, pp: str) -> dict[str, np.ndarray]:
    """Return the images, their visible patches, and the model's reconstructions.

    `images` are float32 `[n, h, w, c]` in the model's range. The result maps names to uint8 `[n, h, w, c]`.
    """
    task = tasks.bind(recipe)
    assert task.draw is not None
    to_model_range = preprocess.device_function(pp)
    batch = {"image": patches.as_bytes(patches.invert(to_model_range, images.shape[-1])(images))}
    batch |= {name: value.numpy() for name, value in task.draw(recipe.seed, tf.constant(0), len(images)).items()}
    tensors = {name: ops.convert_to_tensor(value) for name, value in batch.items()}
    _, predictions = task(model, task.values(ops.convert_to_tensor(images), tensors), training=False)
    return dict(task.show({**batch, "predictions": ops.convert_to_numpy(predictions)}, to_model_range).images)
