"""Training and inference on JAX, as in `train.main`, but with arrays instead of a data set."""

from typing import Any

import jax
import keras
import numpy as np

from keras_vit import models, recipe
from keras_vit.training.jax.devices import Devices
from keras_vit.training.jax.state import TrainState
from keras_vit.training.jax.step import TrainStep

CLASSES = 1000
TINY_MAE = "mae(decoder_hidden_size=16, decoder_num_layers=1, decoder_num_heads=2)"
TINY = {"patch_size": 8, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "mlp_dim": 32}


def device_name() -> str:
    """Return the name of the first device, such as `NVIDIA H100 80GB HBM3`."""
    return jax.devices()[0].device_kind


def setup(
    variant: str,
    optimizer: str,
    tiny: bool = False,
    batch_size: int = 8,
    remat: str = "none",
    dropout: float = 0.0,
    task: str = "classification",
) -> tuple[keras.Model, recipe.Recipe, int]:
    """Return a model, its recipe and the batch size.

    Args:
        variant: Name of the model.
        optimizer: `"sgd"` or `"adamw"`.
        tiny: Whether to use a tiny model instead of the variant.
        batch_size: Images per step.
        remat: See `ViTConfig`.
        dropout: Dropout rate.
        task: `"classification"` or `"mae"`.
    """
    if tiny and task == "mae":
        task = TINY_MAE
    arguments: dict[str, Any] = dict(TINY) if tiny else {}
    if variant in models.VIT:
        arguments |= {"remat": remat, "dropout_rate": dropout}
    described = recipe.Recipe(
        precision="mixed_bfloat16",
        task=task,
        model=recipe.Model(variant, image_size=16 if tiny else 224, arguments=arguments),
        data=recipe.Data(batch_size=batch_size),
        optim=recipe.Optim(optimizer, weight_decay=0.1 if optimizer == "adamw" else 0.0),
    )
    if variant in models.VIT:
        described.model.remat = described.model.arguments.pop("remat")
    return recipe.build_model(described, 10 if tiny else CLASSES), described, batch_size


def random_batch(model: keras.Model, batch_size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return images in [-1, 1], and class numbers, or a random order of the patches for a masked autoencoder."""
    rng = np.random.default_rng(seed)
    images = rng.uniform(-1, 1, (batch_size, *model.config.image_shape)).astype(np.float32)
    if isinstance(model, models.MaskedAutoencoder):
        return images, rng.random((batch_size, model.config.num_patches)).argsort(axis=1).astype(np.int32)
    return images, rng.integers(0, model.output_shape[-1], batch_size)


class Steps:
    """Training steps on the first device.

    Args:
        model: The model.
        recipe: The recipe.
        batch_size: Images per step.
    """

    def __init__(self, model: keras.Model, recipe: recipe.Recipe, batch_size: int):
        self.devices = Devices(jax.devices()[:1])
        self.state = TrainState(model, recipe, self.devices)
        self.step = TrainStep(self.state, recipe, self._inputs, batch_size)
        self.arrays, self.fixed, self.first = self.state.arrays(), self.state.fixed_arrays(), 0

    def _inputs(self, batch, *_):
        """Return the inputs of the task."""
        if isinstance(self.state.model, models.MaskedAutoencoder):
            return batch["image"], batch["target"]
        return batch["image"], jax.nn.one_hot(batch["target"], self.state.model.output_shape[-1])

    def place(self, images: np.ndarray, targets: np.ndarray) -> dict[str, jax.Array]:
        """Put a batch of `random_batch` on the device."""
        return self.devices.place_rows({"image": images, "target": targets})

    def run(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Start a step on a batch on the device, and return its metrics, which may not be computed yet."""
        self.arrays, metrics = self.step.compiled(self.arrays, self.fixed, batch, np.int32(self.first))
        self.first += 1
        return metrics

    def __call__(self, images: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
        """Run a step and return its metrics."""
        return jax.device_get(self.run(self.place(images, targets)))

    def resume(self, values: dict[str, np.ndarray], step: int) -> None:
        """Resume from the arrays of a checkpoint that was saved after a number of steps."""
        self.state.assign(values)
        self.arrays, self.fixed, self.first = self.state.arrays(), self.state.fixed_arrays(), step

    def finish(self) -> None:
        """Write the arrays back to the state."""
        self.state.set_arrays(self.arrays)


class Forward:
    """JIT-compiled inference.

    Args:
        model: The model.
    """

    def __init__(self, model: keras.Model):
        self.weights = [weight.value for weight in model.variables]
        variables = list(model.variables)

        def forward(weights, images):
            with keras.StatelessScope(list(zip(variables, weights, strict=True)), initialize_variables=False):
                return model(images, training=False)

        self.compiled = jax.jit(forward)

    def __call__(self, images: Any) -> jax.Array:
        """Return the output of the model."""
        return self.compiled(self.weights, images)
