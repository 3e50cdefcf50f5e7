"""What the head of a model sees."""

import keras


def representation(model: keras.Model) -> keras.Model:
    """Returns a model of the same layers that gives features and scores.

    Args:
        model: A model of this package, or any functional one whose classification layer is called `head`.

    Returns:
        A model from images to `[features, scores]`: the input of the head, float `[B, D]`, and the model's own output.
        Of a model without a head both are its output.
    """
    names = [layer.name for layer in model.layers]
    output = model.outputs[0]
    features = model.get_layer("head").input if "head" in names else output
    return keras.Model(model.inputs[0], [features, output], name=f"{model.name}_representation")
