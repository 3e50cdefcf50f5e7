"""Feature extractor: the input of the classification head."""

import keras

from keras_vit.layers import CorruptedPatches, PatchMeanPooling, TokenPooling, VisiblePatches
from keras_vit.models.masked import MaskedModel


def encoder_outputs(model: keras.Model) -> dict[str, keras.KerasTensor]:
    """Return the symbolic output of each layer by its name; those of a pre-training model for whole images."""
    if not isinstance(model, MaskedModel):
        return {layer.name: layer.output for layer in model.layers}
    x, outputs = model.inputs[0], {}
    for layer in model.layers:  # a chain up to the last norm of the encoder
        if not isinstance(layer, (keras.layers.InputLayer, VisiblePatches, CorruptedPatches)):
            outputs[layer.name] = x = layer(x)
        if layer.name == "encoder_norm":
            break
    return outputs


def head_input(model: keras.Model) -> keras.KerasTensor:
    """Return the symbolic input of the layer `head`, or the mean of both inputs where there is a `head_dist`."""
    names = [name for name in ("head", "head_dist") if name in {layer.name for layer in model.layers}]
    heads = [model.get_layer(name) for name in names]
    inputs = [head.input for head in heads]
    return (
        inputs[0] if len(inputs) == 1 else keras.layers.Average(dtype=heads[0].compute_dtype, name="features")(inputs)
    )


def representation(model: keras.Model) -> keras.Model:
    """Return a model of the same layers whose outputs are features and scores.

    Args:
        model: A model of this package, or any functional one whose classification layer is named `head`.

    Returns:
        A model from images to `[features, scores]`: the input of the head, float `[B, D]`, and the model's own output.
        A distilled model has two heads, and its features are the mean of their inputs, as with `include_top=False` and
        in timm. Both are the output of a model without a head. For a pre-training model, both are the output of its
        encoder for whole images.

    Example:
    >>> import keras_vit
    >>> both = representation(keras_vit.ViT_Ti16(image_size=32, classes=10))
    >>> [tuple(output.shape) for output in both.outputs]
    [(None, 192), (None, 10)]
    """
    if isinstance(model, MaskedModel):
        config, tokens = model.config, encoder_outputs(model)["encoder_norm"]  # [B, prefix + N, D]
        pool = TokenPooling if config.class_token else PatchMeanPooling
        features = pool(0 if config.class_token else config.num_registers, dtype=model.dtype_policy)(tokens)
        return keras.Model(model.inputs[0], [features, features], name=f"{model.name}_representation")
    names = [layer.name for layer in model.layers]
    output = model.outputs[0]
    features = head_input(model) if "head" in names else output
    return keras.Model(model.inputs[0], [features, output], name=f"{model.name}_representation")
