"""Keras' dense layers, whose files keep LoRA."""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit._values import Values

__all__ = ["Dense", "EinsumDense"]

# Attributes of a layer with LoRA: its base kernel, with the scales of a quantized one, and the two factors.
_BASE = ("_kernel", "kernel_scale", "kernel_zero")
_FACTORS = ("lora_kernel_a", "lora_kernel_b")
PREFIX = "lora."


class _KeepsLora(keras.layers.Layer):
    """Mixin that saves the base kernel and the factors of LoRA, beside their sum, which is all that Keras saves."""

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        super().save_own_variables(store)
        if self.lora_enabled:
            for name in (*_BASE, *_FACTORS):
                if getattr(self, name, None) is not None:
                    store[PREFIX + name] = getattr(self, name)

    def load_own_variables(self, store: MutableMapping[str, Any]) -> None:
        names = tuple(store.keys())  # Keras' store cannot be iterated
        kept = {name: store[name] for name in names if name.startswith(PREFIX)}
        if self.lora_enabled and not kept:
            kept = {PREFIX + name: ops.convert_to_numpy(getattr(self, name)) for name in _FACTORS}
        super().load_own_variables({name: store[name] for name in names if not name.startswith(PREFIX)})
        if self.lora_enabled:  # Keras has set the factors to zero, from where they could not be trained
            for name, value in kept.items():
                getattr(self, name.removeprefix(PREFIX)).assign(value)

    def quantize(self, mode: str | None = None, type_check: bool = True, config: Any = None) -> None:
        """Quantize the kernel; see `keras.layers.Layer.quantize`. `type_check` refuses further subclasses."""
        super().quantize(mode, type_check=type_check and type(self).__module__ != __name__, config=config)


@keras.saving.register_keras_serializable(package="keras_vit")
class Dense(_KeepsLora, keras.layers.Dense):
    """`keras.layers.Dense` whose files keep LoRA.

    Keras saves the sum of the kernel and the product of the factors, and sets both factors to zero when the file is
    loaded, so that they cannot be trained any more. This layer saves the kernel and the factors, too. Loaded into a
    layer without LoRA, its file gives the sum. A file without LoRA fills the kernel and leaves the factors as they are.

    Args:
        units: Number of outputs.
        class_names: Names of the outputs of a classification head, or None.
        values: Names and standardization of the numbers that a head predicts, or None.
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
        **kwargs: Any,
    ):
        super().__init__(units, *args, **kwargs)
        self.class_names = None if class_names is None else tuple(class_names)
        self.values = Values.from_dict(values) if isinstance(values, Mapping) else values

    def get_config(self) -> dict[str, Any]:
        names = {} if self.class_names is None else {"class_names": list(self.class_names)}
        values = {} if self.values is None else {"values": self.values.to_dict()}
        return {**super().get_config(), **names, **values}


@keras.saving.register_keras_serializable(package="keras_vit")
class EinsumDense(_KeepsLora, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` whose files keep LoRA; see `Dense`.

    Args:
        equation: Equation of the product, such as `"bnd,dhk->bnhk"`.
        output_shape: Shape of the outputs without the batch.
        **kwargs: Further arguments of `keras.layers.EinsumDense`.

    References:
        - [LoRA](https://arxiv.org/abs/2106.09685)

    Example:
    >>> layer = EinsumDense("bd,dhk->bhk", output_shape=(2, 4))
    >>> layer.build((None, 8))
    >>> tuple(layer.kernel.shape)
    (8, 2, 4)
    """
