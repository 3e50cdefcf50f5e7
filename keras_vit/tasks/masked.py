"""Pre-training without labels: the model, and the share of the images that it predicts."""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import keras
from keras import ops

from keras_vit import models
from keras_vit.models.masked import MaskedConfig
from keras_vit.tasks.task import Task

if TYPE_CHECKING:
    from keras_vit.data.sources import Source


class MaskedTask(Task):
    """Base class of the tasks whose model predicts the masked patches of an image.

    Attributes:
        model_class: Class of the model.
        config_class: Class of the model's configuration.
        config: The configuration of the run's model.
    """

    model_class: ClassVar[type[keras.Model]]
    config_class: ClassVar[type[MaskedConfig]]

    def prepare(self, source: "Source | None") -> None:
        self.config: Any = self.model_config(self.recipe)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the model that belong to the task."""
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    def model_arguments(self, recipe: Any, channels: int = 3) -> dict[str, Any]:
        """Return the arguments of the model of a recipe."""
        self.require_vit(recipe)
        sizes = dataclasses.asdict(models.VIT[recipe.model.variant])
        return {**sizes, **recipe.model.constructor_arguments(), **self.arguments(), "channels": channels}

    def model_config(self, recipe: Any, channels: int = 3) -> MaskedConfig:
        """Return the configuration of the model of a recipe."""
        return self.config_class(**self.model_arguments(recipe, channels))

    def create_model(self, recipe: Any, channels: int) -> keras.Model:
        """Build the model of a recipe."""
        return self.model_class(**self.model_arguments(recipe, channels), dtype=recipe.precision)

    def mean_of_masked(self, of_patch: Any, masked: Any) -> Any:
        """Return the mean over the masked patches, `[b]`. All images have the same number of masked patches."""
        return ops.sum(of_patch * masked, axis=1) / self.config.num_masked
