"""The training step of a recipe on the JAX backend: one program over all devices of a slice."""

import math

from keras_vit import recipe as recipes
from keras_vit.planning import tpu_compiler
from keras_vit.planning.tpu_compiler import Compiled, DoesNotFit
from keras_vit.planning.tpu_targets import Target


class Programs:
    """Steps that `train.main` runs under `KERAS_BACKEND=jax`.

    Args:
        recipe: The recipe.
        classes: Number of classes of its data.
        batch: Specification of a batch; see `tpu_step.batch_spec`.
        target: The slice.

    Attributes:
        gradient_bytes: Bytes of the gradients.
    """

    def __init__(self, recipe: recipes.Recipe, classes: int, batch: dict, target: Target):
        self.recipe, self.classes, self.batch, self.target = recipe, classes, batch, target
        self.devices = tpu_compiler.topology(target).devices
        self.gradient_bytes = 4 * sum(
            math.prod(weight.shape) for weight in self._program(recipe, fsdp=False)[1][0]["weights"]
        )

    def compile(self, recipe: recipes.Recipe, fsdp: bool) -> Compiled | DoesNotFit:
        """Compile the training step of a recipe that differs in its `tpu_plan.Setting`."""
        step, arguments = self._program(recipe, fsdp)
        return tpu_compiler.outcome(lambda: step.lower(*arguments).compile())

    def _program(self, recipe, fsdp):
        from keras_vit.training.jax.devices import Devices
        from keras_vit.training.jax.step import program

        return program(recipe, self.classes, self.batch, Devices(self.devices, fsdp))
