"""Feature extractor: the input of the classification head."""

import keras


def representation(model: keras.Model) -> keras.Model:
    """Return a model of the same layers whose outputs are features and scores.

    Args:
        model: A model of this package, or any functional one whose classification layer is named `head`.

    Returns:
        A model from images to `[features, scores]`: the input of the head, float `[B, D]`, and the model's own output.
        Both are the output of a model without a head.

    Example:
    >>> import keras_vit
    >>> both = representation(keras_vit.ViT_Ti16(image_size=32, classes=10))
    >>> [tuple(output.shape) for output in both.outputs]
    [(None, 192), (None, 10)]
    """
    names = [layer.name for layer in model.layers]
    output = model.outputs[0]
    features = model.get_layer("head").input if "head" in names else output
    return keras.Model(model.inputs[0], [features, output], name=f"{model.name}_representation")
