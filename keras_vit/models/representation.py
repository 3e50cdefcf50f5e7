"""Feature extractor: the input of the classification head."""

import keras

from keras_vit.models.masked import MaskedModel


def representation(model: keras.Model) -> keras.Model:
    """Return a model of the same layers whose outputs are features and scores.

    Args:
        model: A model of this package, or any functional one whose classification layer is named `head`.

    Returns:
        A model from images to `[features, scores]`: the input of the head, float `[B, D]`, and the model's own output.
        Both are the output of a model without a head. For a pre-training model, both are the output of its encoder for
        whole images.

    Example:
    >>> import keras_vit
    >>> both = representation(keras_vit.ViT_Ti16(image_size=32, classes=10))
    >>> [tuple(output.shape) for output in both.outputs]
    [(None, 192), (None, 10)]
    """
    if isinstance(model, MaskedModel):
        features = model.features(model.inputs[0])
        return keras.Model(model.inputs[0], [features, features], name=f"{model.name}_representation")
    names = [layer.name for layer in model.layers]
    output = model.outputs[0]
    features = model.get_layer("head").input if "head" in names else output
    return keras.Model(model.inputs[0], [features, output], name=f"{model.name}_representation")
