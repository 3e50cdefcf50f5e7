"""Base class of all models: a functional model that is serialized as the arguments of its constructor."""

import dataclasses
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import h5py
import keras
import numpy as np

from keras_vit.layers import kernels
from keras_vit.layers.base import find_changes, restore_changes
from keras_vit.layers.keras_private import all_layers
from keras_vit.models import normalization
from keras_vit.models.config import Config
from keras_vit.models.inputs import checked_images
from keras_vit.models.onnx_erfc import register_erfc
from keras_vit.models.resizing import Resizing
from keras_vit.outputs import CLASSIFICATION
from keras_vit.util import checks
from keras_vit.util.values import Values

Filters = str | Iterable[str] | Callable[[keras.layers.Layer], bool]  # regular expressions for names, or a predicate


class ConfiguredModel(keras.Model):
    """Functional model that is serialized as the arguments of its constructor.

    `type(model).from_config({**model.get_config(), "image_size": 384})` builds the same architecture with one argument
    changed. A saved model restores frozen, quantized and LoRA layers.

    Attributes:
        config: The resolved arguments, a `ViTConfig` or `BiTConfig`.
        resizing: Resizing applied to image files when the weights are evaluated, or None if unknown, as in a new model.
    """

    def __init__(self, inputs: Any, outputs: keras.KerasTensor, config: Config, name: str):
        super().__init__(inputs=inputs, outputs=outputs, name=config.name or name)
        self._has_seen_images = False
        self.dtype_policy = resolve_policy(config.dtype)
        self.config = config
        self._input_normalization: normalization.Normalization | None = None
        self.resizing: Resizing | None = None

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Check the images and call the model."""
        return super().__call__(self._checked(inputs), *args, **kwargs)

    def _checked(self, inputs):
        return checked_images(self, inputs)

    @property
    def input_normalization(self) -> normalization.Normalization | None:
        """Mean and standard deviation with which the weights were trained: `(pixels - mean) / deviation`.

        The pixels are in [0, 1]. Mean and standard deviation have one number per channel. None if the normalization is
        unknown, as in a new model. Loading a checkpoint that contains the normalization sets this property, and saving
        the model saves the normalization. `keras_vit.preprocess_input(images, model)` applies the normalization.

        Raises:
            ValueError: If the new value is not a pair of numbers, or of sequences with one number per channel.
        """
        return self._input_normalization

    @input_normalization.setter
    def input_normalization(self, value: Any) -> None:
        if value is not None:
            resolved = normalization.resolve(value)
            value = normalization.for_channels(resolved, self.config.channels)
            if value is None:
                raise ValueError(
                    f"`input_normalization` must have {self.config.channels} channels. Received: {resolved}."
                )
        self._input_normalization = value
        if self.config.input_range is not None:
            layer = self.get_layer("rescaling")
            layer.scale, layer.offset = normalization.scale_and_offset(
                value or normalization.SYMMETRIC, self.config.input_range
            )
            self.train_function = self.test_function = self.predict_function = None  # they contain the old numbers

    @property
    def preprocess(self) -> str | None:
        """Preprocessing string with which the weights are evaluated, or None if the checkpoint does not contain it.

        The operations convert an image file to an image of the model's size, as in
        `"decode(precise=True)|resize_small(256, 'pillow_bicubic')|central_crop(224)|value_range(-1, 1)"`. Saving the
        model saves the resizing and the normalization.
        """
        values = normalization.operation(normalization.of_images(self), self.config.input_range)
        if self.resizing is None or values is None:
            return None
        size = self.config.image_size
        resizing = self.resizing if size is None else self.resizing.scaled(checks.size_pair("image_size", size))
        return f"{resizing.operations(self.config.channels)}|{values}"

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes in the order of the outputs, or None if unknown.

        There must be one name for each class. Loading a checkpoint that contains class names sets them. The head stores
        the names, so that saved models, copies, clones and models that contain this model keep the names.
        `save_weights` does not save the names.
        """
        return self._of_head("class_names")

    @class_names.setter
    def class_names(self, value: Iterable[str] | None) -> None:
        names = None if value is None else tuple(map(str, checks.sequence("class_names", value, "names")))
        count = self.output_shape[-1] if self._heads() else 0
        if names is not None and len(names) != count:
            raise ValueError(f"`class_names` must name the {count} classes of the head. Received: {len(names)} names.")
        if names is not None and self.values is not None:
            raise ValueError(f"`class_names` needs `values=None`. Received: a model that predicts {self.values.names}.")
        for head in self._heads():
            head.class_names = names

    @property
    def values(self) -> Values | None:
        """Names and standardization of the values that a regression model predicts, or None for other models.

        The outputs of the model are standardized. `model.values.restore(outputs)` converts outputs to the unit of the
        data. Predictors and exported artifacts return converted values. Like `class_names`, the names and
        standardization are stored in the head.

        Raises:
            ValueError: If the number of values differs from the number of outputs, or the model has `class_names` or a
                `classifier_activation`.
        """
        return self._of_head("values")

    @values.setter
    def values(self, value: Values | Mapping[str, Any] | None) -> None:
        values = Values.from_dict(value) if isinstance(value, Mapping) else value
        if values is not None:
            count = self.output_shape[-1] if self._heads() else 0
            if not isinstance(values, Values) or len(values.names) != count:
                raise ValueError(f"`values` must describe the {count} outputs of the head. Received: {values!r}.")
            if self.class_names is not None or self.config.classifier_activation is not None:
                raise ValueError(
                    "`values` needs `class_names=None` and `classifier_activation=None`. Received: a model with "
                    f"class_names={self.class_names} and classifier_activation={self.config.classifier_activation!r}."
                )
        for head in self._heads():
            head.values = values

    @property
    def prediction_activation(self) -> str | None:
        """Activation that converts the logits to probabilities, `"softmax"` or `"sigmoid"`, or None for the default.

        The default is `"sigmoid"` for one class and `"softmax"` for several classes. Predictors and exported artifacts
        apply the activation, unless the model has a `classifier_activation`. Like `class_names`, the activation is
        stored in the head.
        """
        return self._of_head("prediction_activation")

    @prediction_activation.setter
    def prediction_activation(self, value: str | None) -> None:
        checks.choice("prediction_activation", value, (None, *CLASSIFICATION))
        for head in self._heads():
            head.prediction_activation = value

    def _of_head(self, name: str) -> Any:
        return next((getattr(head, name, None) for head in self._heads()), None)

    def _heads(self) -> list[Any]:
        given = self.config.head
        return [layer for layer in self.layers if layer.name in ("head", "head_dist")] if given is None else [given]

    def quantize(
        self, mode: str | None = None, config: Any = None, filters: Filters | None = None, **kwargs: Any
    ) -> None:
        """Quantize the dense layers; see `keras.Model.quantize`. Layers without quantization support do not change."""

        def can_quantize(layer):
            implemented = type(layer).quantize is not keras.layers.Layer.quantize
            return implemented and (filters is None or _matches(layer, filters))

        if str(mode or getattr(config, "mode", None)).startswith("int"):
            for layer in filter(can_quantize, all_layers(self)):
                kernel = getattr(layer, "kernel", None)
                if kernel is not None and not np.any(keras.ops.convert_to_numpy(kernel)):
                    warnings.warn(
                        f"The kernel of {layer.name!r} is zero, and cannot be trained after quantization. Pass "
                        f"`filters=lambda layer: layer.name != {layer.name!r}`, or quantize after training.",
                        stacklevel=3,
                    )
        super().quantize(mode, config=config, filters=can_quantize, **kwargs)

    def export(self, filepath: Any, format: str = "tf_saved_model", *args: Any, **kwargs: Any) -> None:  # noqa: A002
        """Export the model for inference, with plain formulas instead of kernels; see `keras.Model.export`."""
        if format == "onnx":
            register_erfc()
        with kernels.plain():
            super().export(filepath, format, *args, **kwargs)

    def save(self, filepath: Any, overwrite: bool = True, zipped: bool | None = None, **kwargs: Any) -> None:
        """Save the model; see `keras.Model.save`. `keras.models.load_model` can also load HDF5 files."""
        super().save(filepath, overwrite=overwrite, zipped=zipped, **kwargs)
        if str(filepath).endswith((".h5", ".hdf5")):  # Keras writes a class name that it cannot resolve
            with h5py.File(filepath, "a") as file:
                content = json.loads(file.attrs["model_config"])
                if content["class_name"] == type(self).__name__:
                    content["class_name"] = keras.saving.get_registered_name(type(self))
                    file.attrs["model_config"] = json.dumps(content).encode()

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments and later changes to the layers: freezing, quantization and LoRA."""
        policy = self.dtype_policy
        simple = type(policy) is keras.dtype_policies.DTypePolicy
        config = {
            **self.config.to_dict(),
            "name": self.name,
            "dtype": policy.name if simple else keras.dtype_policies.serialize(policy),
        }
        if self.input_normalization is not None:
            config["input_normalization"] = [list(side) for side in self.input_normalization]
        if self.resizing is not None:
            config["resizing"] = dataclasses.asdict(self.resizing)
        if self.class_names is not None:
            config["class_names"] = list(self.class_names)
        if self.values is not None:
            config["values"] = self.values.to_dict()
        if self.prediction_activation is not None:
            config["prediction_activation"] = self.prediction_activation
        if not self.trainable:
            config["trainable"] = False
        changes = {layer.name: find_changes(layer, self.trainable) for layer in self.layers}
        changes = {name: found for name, found in changes.items() if found}
        return {**config, "layers": changes} if changes else config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Self:
        """Create a model from its configuration; see `get_config`."""
        config = dict(config)
        trainable = config.pop("trainable", True)
        input_normalization = config.pop("input_normalization", None)
        resizing = config.pop("resizing", None)
        class_names, values = config.pop("class_names", ()), config.pop("values", {})
        activation = config.pop("prediction_activation", None)
        changes = config.pop("layers", {})
        model = cls(**config)
        model.input_normalization = input_normalization
        model.resizing = None if resizing is None else Resizing.from_dict(resizing)
        outputs = model.output_shape[-1] if model.config.include_top else 0  # `config` may change the head
        if outputs == len(class_names) > 0:
            model.class_names = class_names
        if activation is not None and outputs == (len(class_names) or outputs):
            model.prediction_activation = activation
        if outputs == len(values.get("names", ())) > 0:
            model.values = values
        if not trainable:
            model.trainable = False
        for layer in model.layers:
            restore_changes(layer, changes.get(layer.name, {}))
        return model


def check_own(model: Any, *classes: type[ConfiguredModel]) -> None:
    """Raise a ValueError if `model` is not an instance of one of `classes` (default: any model of this package)."""
    if not isinstance(model, classes or ConfiguredModel):
        raise ValueError(
            f"`model` must be a keras_vit model, such as keras_vit.ViT_B16(). Received: {checks.described(model)}. If "
            "it contains a VisionTransformer or BiTResNet, pass that model. keras.models.clone_model returns a plain "
            "Functional model: use copy.deepcopy(model) instead, which returns a keras_vit model."
        )


def _matches(layer: keras.layers.Layer, filters: Filters) -> bool:
    """Return whether a layer matches the `filters` of `keras.Model.quantize`."""
    if callable(filters):
        return bool(filters(layer))
    patterns = [filters] if isinstance(filters, str) else filters
    return any(re.search(pattern, layer.name) for pattern in patterns)


def resolve_policy(dtype: str | dict[str, Any] | keras.DTypePolicy | None) -> keras.DTypePolicy:
    """Return the dtype policy for a policy, a name or a configuration. None gives the global policy."""
    if isinstance(dtype, dict):
        return keras.dtype_policies.deserialize(dtype)
    return keras.dtype_policies.get(dtype) if dtype is not None else keras.config.dtype_policy()


def images_input(config: Config, policy: keras.DTypePolicy) -> keras.KerasTensor:
    """Create the symbolic input of a model."""
    # Between 128 and 255, bfloat16 represents only integers.
    dtype = policy.compute_dtype if config.input_range is None else "float32"
    return keras.Input(config.image_shape, dtype=dtype, name="images")


def normalized(config: Config, images: keras.KerasTensor) -> keras.KerasTensor:
    """Return the normalized images: rescaled if the model has an `input_range`, and unchanged otherwise."""
    if config.input_range is None:
        return images
    scale, offset = normalization.scale_and_offset(normalization.SYMMETRIC, config.input_range)
    return keras.layers.Rescaling(scale, offset, dtype="float32", name="rescaling")(images)
