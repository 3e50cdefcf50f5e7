"""Keras' dense layers with the paper's LoRA, whose factors can be saved and loaded."""

import math
import re
import string
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers import keras_private
from keras_vit.util import checks
from keras_vit.util.values import Values

__all__ = ["Dense", "EinsumDense"]

_FACTORS = ("lora_kernel_a", "lora_kernel_b")
PREFIX = "lora."
_quantized_call = threading.RLock()


class _LoraLayer(keras.layers.Layer):
    """Mixin for LoRA that does not compute the updated kernel in `call`, and saves the base kernel and the factors."""

    lora_enabled: bool
    lora_rank: Any
    lora_alpha: Any
    activation: Any

    def enable_lora(
        self, rank: int, lora_alpha: float | None = None, a_initializer: Any = None, b_initializer: Any = "zeros"
    ) -> None:
        """Freeze the kernel and train the two factors of its update: `kernel + lora_alpha / rank * A B`.

        As in the paper, the factors belong to the flattened kernel: `lora_kernel_a` is `[inputs, rank]` and
        `lora_kernel_b` is `[rank, outputs]`, both float32. For example, the kernel `[D, H, K]` of the queries has
        factors `[D, rank]` and `[rank, H K]`.

        Args:
            rank: Maximum rank of the update.
            lora_alpha: Numerator of the update's scale, `lora_alpha / rank`. None for `rank`.
            a_initializer: Initializer of A. None for a uniform distribution between `±1 / sqrt(inputs)`, as in the
                paper's code and in peft. Keras' default distribution is 2.4 times as wide.
            b_initializer: Initializer of B.

        Raises:
            ValueError: If the layer is not built, already has LoRA, or does not support LoRA.
        """
        checks.positive_int("rank", rank)
        mode, constraint = self.quantization_mode, self.kernel_constraint
        if not self.built or self.lora_enabled or constraint or mode not in (None, "int8", "int4"):
            raise ValueError(
                "LoRA needs a built layer without LoRA, without kernel_constraint, and without quantization other than "
                f"int8 or int4. Received: {self.name!r} with built={self.built}, lora_enabled={self.lora_enabled}, "
                f"kernel_constraint={constraint}, quantization_mode={mode!r}."
            )
        inputs, outputs = self.flat_shape()
        if a_initializer is None:
            a_initializer = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")
        shared: dict[str, Any] = {"dtype": "float32", "regularizer": self.kernel_regularizer}
        with keras_private.adding_variables(self):
            self.lora_kernel_a = self.add_weight((inputs, rank), a_initializer, name="lora_kernel_a", **shared)
            self.lora_kernel_b = self.add_weight((rank, outputs), b_initializer, name="lora_kernel_b", **shared)
        keras_private.stored_kernel(self).trainable = False
        if lora_alpha is None:  # Keras' `Dense` ignores its constructor argument
            lora_alpha = rank if self.lora_alpha is None else self.lora_alpha
        self.lora_rank, self.lora_alpha, self.lora_enabled = rank, lora_alpha, True

    def merge_lora(self) -> None:
        """Add the update to the kernel and remove the factors. A quantized kernel is quantized again."""
        if not self.lora_enabled:
            return
        merged = self._merged_variables()
        for factor in (self.lora_kernel_a, self.lora_kernel_b):
            keras_private.remove_variable(self, factor)
        self.lora_kernel_a = self.lora_kernel_b = self.lora_rank = self.lora_alpha = None
        self.lora_enabled = False
        super().load_own_variables(merged)
        keras_private.stored_kernel(self).trainable = self.trainable and self.quantization_mode is None

    @property
    def kernel(self) -> Any:
        """The kernel including its update, or the stored integers of a quantized kernel."""
        if not self.lora_enabled:
            return super().kernel
        if self.quantization_mode is not None:
            return keras_private.stored_kernel(self)
        kernel = keras_private.stored_kernel(self)
        return kernel + ops.cast(self._scale() * self._product_of_factors(), kernel.dtype)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the outputs without computing the updated kernel or its gradient."""
        if not self.lora_enabled:
            return super().call(inputs, training=training)
        outputs = self._apply(inputs, keras_private.stored_kernel(self)) + self._update(inputs)
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs if self.activation is None else self.activation(outputs)

    def _scale(self) -> float:
        return self.lora_alpha / self.lora_rank

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        variables = self._merged_variables()
        if self.lora_enabled:
            variables |= self._lora_variables()
        for name, value in variables.items():
            store[name] = value

    def load_own_variables(self, store: MutableMapping[str, Any]) -> None:
        names = tuple(store.keys())  # Keras' store cannot be iterated
        kept = {name: store[name] for name in names if name.startswith(PREFIX)}
        if self.lora_enabled and not kept:
            kept = {PREFIX + name: ops.convert_to_numpy(getattr(self, name)) for name in _FACTORS}
        super().load_own_variables({name: store[name] for name in names if not name.startswith(PREFIX)})
        if self.lora_enabled:  # Keras has set the factors to zero, which prevents further training
            variables = self._lora_variables()
            for name, value in kept.items():
                variables[name].assign(value)

    def _merged_variables(self) -> dict[str, Any]:
        """Return the variables that Keras saves, with the updated kernel."""
        store: dict[str, Any] = {}
        super().save_own_variables(store)
        return store

    def _lora_variables(self) -> dict[str, Any]:
        """Return what this layer saves in addition: the base kernel, the scales of a quantized kernel, the factors."""
        scales = {name: getattr(self, name, None) for name in ("kernel_scale", "kernel_zero")}
        factors = {name: getattr(self, name) for name in _FACTORS}
        variables = {"_kernel": keras_private.stored_kernel(self), **scales, **factors}
        return {PREFIX + name: variable for name, variable in variables.items() if variable is not None}

    def quantize(self, mode: str | None = None, type_check: bool = True, config: Any = None) -> None:
        """Quantize the kernel; see `keras.layers.Layer.quantize`. `type_check` rejects subclasses of this layer."""
        super().quantize(mode, type_check=type_check and type(self).__module__ != __name__, config=config)


@keras.saving.register_keras_serializable(package="keras_vit")
class Dense(_LoraLayer, keras.layers.Dense):
    """`keras.layers.Dense` whose LoRA trains in less time and memory, and can be trained further after loading.

    Keras saves only the updated kernel. On loading, Keras sets both factors to zero, which prevents further training.
    This layer also saves the base kernel and the factors. A layer without LoRA that loads the saved file receives the
    updated kernel. Loading a file without LoRA sets the kernel and leaves the factors unchanged.

    Args:
        units: Number of outputs.
        class_names: Names of the classes if the layer is a classification head, or None.
        values: Names and standardization of the values if the layer is a regression head, or None.
        prediction_activation: Activation that converts the logits of a classification head to probabilities, or None
            for the default.
        **kwargs: Further arguments of `keras.layers.Dense`.

    References:
        - [LoRA](https://arxiv.org/abs/2106.09685)

    Example:
    >>> layer = Dense(3)
    >>> layer.build((None, 2))
    >>> layer.enable_lora(rank=1)
    >>> [variable.name for variable in layer.trainable_variables]
    ['bias', 'lora_kernel_a', 'lora_kernel_b']
    """

    def __init__(
        self,
        units: Any,
        *args: Any,
        class_names: Sequence[str] | None = None,
        values: Values | Mapping[str, Any] | None = None,
        prediction_activation: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(units, *args, **kwargs)
        self.class_names = None if class_names is None else tuple(class_names)
        self.values = Values.from_dict(values) if isinstance(values, Mapping) else values
        self.prediction_activation = prediction_activation

    def get_config(self) -> dict[str, Any]:
        names = {} if self.class_names is None else {"class_names": list(self.class_names)}
        values = {} if self.values is None else {"values": self.values.to_dict()}
        activation = {"prediction_activation": self.prediction_activation} if self.prediction_activation else {}
        return {**super().get_config(), **names, **values, **activation}

    def flat_shape(self) -> tuple[int, int]:
        """Return the number of inputs and the number of outputs."""
        return keras_private.stored_kernel(self).shape[0], self.units

    def _product_of_factors(self) -> Any:
        return ops.matmul(self.lora_kernel_a, self.lora_kernel_b)

    def _apply(self, inputs: Any, kernel: Any) -> Any:
        return ops.matmul(inputs, kernel)

    def _update(self, inputs: Any) -> Any:
        return ops.matmul(self._scale() * ops.matmul(inputs, self.lora_kernel_a), self.lora_kernel_b)


@keras.saving.register_keras_serializable(package="keras_vit")
class EinsumDense(_LoraLayer, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` with the paper's LoRA, which can be trained further after loading; see `Dense`.

    The factors belong to the flattened kernel. Keras' layer would factor a kernel `[D, H, K]` into `[D, H, r]` and
    `[r, K]`. For the query projection of ViT-B at rank 8, these factors have 74,240 weights instead of 12,288. The
    update also has a different rank, which adapter files cannot represent.

    Args:
        equation: Equation of the product, such as `"bnd,dhk->bnhk"`.
        output_shape: Shape of the outputs without the batch.
        **kwargs: Further arguments of `keras.layers.EinsumDense`.

    References:
        - [LoRA](https://arxiv.org/abs/2106.09685)

    Example:
    >>> layer = EinsumDense("bnd,dhk->bnhk", output_shape=(None, 12, 64))
    >>> layer.build((None, None, 768))
    >>> layer.enable_lora(rank=8)
    >>> tuple(layer.lora_kernel_a.shape), tuple(layer.lora_kernel_b.shape)
    ((768, 8), (8, 768))
    """

    def quantized_call(self, inputs: Any, training: bool | None = None) -> Any:
        if getattr(self, "lora_kernel_a", None) is None:
            return super().quantized_call(inputs, training=training)
        with _quantized_call:  # Keras expects factors of different shapes, and adds their product before the activation
            activation, self.activation, self.lora_enabled = self.activation, None, False
            try:
                outputs = super().quantized_call(inputs, training=training)
            finally:
                self.activation, self.lora_enabled = activation, True
        outputs = ops.cast(outputs + self._update(inputs), self.compute_dtype)
        return outputs if activation is None else activation(outputs)

    def _axes(self) -> tuple[str, str, str, str, str]:
        """Return the axes of the inputs, the kernel and the outputs, and the kernel's input and output axes."""
        inputs, axes, outputs = re.split(",|->", self.equation)
        summed = "".join(axis for axis in axes if axis in inputs and axis not in outputs)
        free = "".join(axis for axis in axes if axis in outputs and axis not in inputs)
        if len(summed + free) < len(axes):
            raise ValueError(
                "LoRA needs a kernel whose axes each belong to the inputs or to the outputs. Received: "
                f"equation={self.equation!r} of {self.name!r}."
            )
        return inputs, axes, outputs, summed, free

    def _shapes(self) -> tuple[list[int], list[int]]:
        """Return the sizes of the kernel's input axes and of its output axes."""
        _, axes, _, summed, free = self._axes()
        is_packed = self.quantization_mode == "int4"
        shape = self.original_kernel_shape if is_packed else keras_private.stored_kernel(self).shape
        sizes = dict(zip(axes, shape, strict=True))
        return [sizes[axis] for axis in summed], [sizes[axis] for axis in free]

    def flat_shape(self) -> tuple[int, int]:
        """Return the number of inputs and the number of outputs of the flattened kernel."""
        inputs, outputs = self._shapes()
        return math.prod(inputs), math.prod(outputs)

    def _factors(self) -> tuple[Any, Any, str]:
        """Return A and B with the axes of the kernel, and an unused letter for the axis of the rank."""
        inputs, outputs = self._shapes()
        a = ops.reshape(self.lora_kernel_a, (*inputs, self.lora_rank))
        b = ops.reshape(self.lora_kernel_b, (self.lora_rank, *outputs))
        return a, b, next(letter for letter in string.ascii_letters if letter not in self.equation)

    def _product_of_factors(self) -> Any:
        _, axes, _, summed, free = self._axes()
        a, b, r = self._factors()
        return ops.einsum(f"{summed}{r},{r}{free}->{axes}", a, b)

    def _apply(self, inputs: Any, kernel: Any) -> Any:
        return ops.einsum(self.equation, inputs, kernel)

    def _update(self, inputs: Any) -> Any:
        of_inputs, _, of_outputs, summed, free = self._axes()
        a, b, r = self._factors()
        kept = "".join(axis for axis in of_inputs if axis in of_outputs)  # including the dots of an ellipsis
        inner = self._scale() * ops.einsum(f"{of_inputs},{summed}{r}->{kept}{r}", inputs, a)  # [..., r]
        return ops.einsum(f"{kept}{r},{r}{free}->{of_outputs}", inner, b)

    def _merged_variables(self) -> dict[str, Any]:
        """Return the variables that Keras saves, with the updated kernel. Keras multiplies factors of other shapes."""
        if not self.lora_enabled or self.quantization_mode is None:
            return super()._merged_variables()
        a, b, update = self.lora_kernel_a, self.lora_kernel_b, self._product_of_factors()
        self.lora_kernel_a, self.lora_kernel_b = update, ops.eye(update.shape[-1])
        try:
            return super()._merged_variables()
        finally:
            self.lora_kernel_a, self.lora_kernel_b = a, b
