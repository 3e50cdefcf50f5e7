"""Checks of flags and paths that need no import of Keras, which takes seconds."""

import itertools
import os
from collections.abc import Sequence

from absl import flags

from keras_vit.cli import common_flags, recipe_flags
from keras_vit.runs import recipe_file
from keras_vit.training import chosen_recipe
from keras_vit.util import source_specs, storage


def check(arguments: Sequence[str]) -> None:
    """Check the parsed flags, and the other arguments of a program.

    Raises:
        ValueError: If a flag is missing, flags exclude each other, or a name is wrong.
        FileNotFoundError: If a file or a directory does not exist.
    """
    options = flags.FLAGS
    given = list(itertools.takewhile(lambda argument: not argument.startswith("-"), arguments))
    if "on" in options:  # the files of a job may be on other machines
        return
    if "override" in options:
        choices = recipe_flags.choices_from_flags(given)
        if choices.time is not None:
            chosen_recipe.seconds_of(choices.time)
        if choices.config and not storage.is_address(choices.config) and not os.path.isfile(choices.config):
            recipe_file.find(choices.config.partition(":")[0])
        for name in (choices.model, choices.weights):
            if name and os.sep in name:
                check_weights(name)
    if "data" in options and (data := common_flags.data_argument(given)):
        is_folder = "override" in options and not options.config and ":" not in data
        check_data(f"folder:{data}" if is_folder else data)
    if "model" in options and "preprocess" in options:
        if not options.model and "labels" in options and "artifacts" not in options:
            raise ValueError("--model is missing: the directory of a run, a .keras file, a checkpoint or an artifact.")
        if options.model:
            check_weights(options.model)


def check_data(spec: str) -> None:
    """Raise an error if the path of a data set does not exist."""
    kind, location, _ = source_specs.parts(spec)
    if kind in source_specs.KINDS and location and not source_specs.exists(spec):
        raise FileNotFoundError(f"There is no file or folder {location!r}.")


def check_weights(name: str) -> None:
    """Raise an error if weights have neither a known name nor an existing path."""
    from keras_vit import zoo  # imports NumPy
    from keras_vit.zoo import variants

    if name not in variants.list_models():
        zoo.parse(name)
