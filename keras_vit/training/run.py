"""Creation and resumption of a training run in its directory."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from absl import logging

from keras_vit import outputs
from keras_vit import recipe as recipes
from keras_vit.checkpoints import load_checkpoint
from keras_vit.inspection.headings import model_title
from keras_vit.runs import data_record, restarts, run_directory, run_fields
from keras_vit.runs.pixel_range import set_normalization
from keras_vit.training.run_data import RunData
from keras_vit.training.state import BaseState
from keras_vit.util import checks, storage


class TrainingRun:
    """A new run, or a run that resumes from its last checkpoint.

    Attributes:
        recipe: The recipe, with the path and the architecture of its initial weights.
        store: The checkpoints.
        step: Step of the checkpoint that `begin` has restored; None for a new run.
        is_new: Whether the directory has no weights yet.

    Raises:
        ValueError: If the directory has weights from another recipe or other data, unless `change_recipe` is set.
    """

    def __init__(self, directory: str, recipe: recipes.Recipe, data: RunData, change_recipe: bool = False):
        recorded = run_directory.recorded(directory)
        self.is_new = not recorded
        has_steps = recipe.total_steps or recorded.get("recipe", {}).get("head_images")
        if recorded and (recipe.time or not has_steps):  # the steps were planned when the run began
            planned = recipes.from_dict(recorded["recipe"])
            recipe = recipes.replace(recipe, {field: recipes.get(planned, field) for field in recipes.OF_TIME})
        self.directory, self.data, self.given = directory, data, recipe
        self.files = data_record.describe(recipe.data.source, data.train, data.eval, *filter(None, [data.test]))
        run_fields.check(directory, recipe, data.describe(), change_recipe, self.files)
        architecture = recorded.get("architecture")
        if architecture is None:  # otherwise the record replaces the initial weights
            model = dataclasses.replace(recipe.model, weights=recipes.weights_path(recipe))
            recipe = dataclasses.replace(recipe, model=model)
        self.recipe = recipes.resolve(recipe, architecture)
        self.store = data.backend.create_store(
            os.path.join(directory, run_directory.CHECKPOINTS), recipe.keep_checkpoints
        )
        self.step: int | None = None
        data.task.recipe = self.recipe  # of which the validation reads its interval

    def set_fields(self, fields: Mapping[str, Any]) -> recipes.Recipe:
        """Set fields of the recipe, also of the task, and return the recipe."""
        self.given, self.recipe = (recipes.replace(recipe, fields) for recipe in (self.given, self.recipe))
        self.data.task.recipe = self.recipe
        return self.recipe

    def begin(self, state: BaseState) -> None:
        """Restore a state from the newest intact checkpoint, or load its initial weights. Then record the run."""
        data_record.check_processes(self.files, self.data.backend.mean)
        saved, model = self.store.restore(state.specs()), state.model
        if saved is None:
            load_weights(model, self.recipe, self.data.train.class_names)
            state.begin()
        else:
            state.assign(saved)
            self.step = state.progress.step
            logging.info("Resuming from the checkpoint of step %d", self.step)
        set_normalization(model, self.recipe.data.pp_eval)
        self.data.task.name_outputs(model)
        name = model_title(dataclasses.asdict(self.given.model))
        trained = sum(math.prod(weight.shape) for weight in state.trained)
        logging.info("%s: %s weights, %s trained", name, f"{model.count_params():,}", f"{trained:,}")
        self.record()

    def record(self) -> None:
        """Write `config.json` and `data.json` on the chief."""
        backend = self.data.backend
        if backend.is_chief:
            run_directory.write_config(
                self.directory, self.given, self.data.describe(), self.step, self.recipe, backend.record()
            )
            data_record.write(self.directory, self.files)
            restarts.record(self.directory, self.step or 0)
            storage.upload(self.directory)


def load_weights(model: keras.Model, recipe: recipes.Recipe, class_names: Sequence[str]) -> None:
    """Load the initial weights of a recipe, if any. `head="auto"` resets a head with another order of the classes."""
    path = recipes.weights_path(recipe)
    if path is None:
        logging.info("Training from scratch: the initial weights are random (--weights names published weights)")
        return
    head = recipe.model.head
    if head == "auto" and recipe.task.labels and not outputs.of(recipe.task.labels).has_probabilities:
        head = "reset"  # outputs may differ in meaning even if their number is equal
    load_checkpoint(model, path, head=head)
    learned = getattr(model, "class_names", None) or ()
    numbers = checks.class_numbers(class_names, learned)
    if head == "auto" and (numbers >= 0).any() and numbers.tolist() != list(range(len(learned))):
        logging.info(
            "The head is reset: its classes are %s, ..., but the classes of the data are %s, ...",
            learned[:3],
            class_names[:3],
        )
        load_checkpoint(model, path, head="reset")
    logging.info("Fine-tuning from %s", path)
