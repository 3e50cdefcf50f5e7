"""Flags that several programs share, and the recipe that they describe. A flag has the same meaning in all programs."""

import ast
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_vit.training import chosen_recipe
from keras_vit.util import file_io, foreign_names, image_files, storage

if TYPE_CHECKING:
    from keras_vit.recipe import Recipe

flags.disclaim_key_flags()  # the flags belong to the program that defines them

# A copy from `keras_vit.training.distribute`, which must not be imported before the flags are parsed.
STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker", "tpu", "data_parallel", "fsdp")


# Fields of the recipe that have flags of their own.
FIELDS_OF_FLAGS = ("total_steps", "data.batch_size", "optim.learning_rate", "seed")


def define_recipe_flags() -> None:
    """Define the flags that choose and change a recipe, the most used flags first."""
    define_data_flag()
    flags.DEFINE_string(
        "model",
        None,
        "Variant to train, such as ViT_S16, or pretrained model, such as hf:facebook/dinov2-small or a file. By "
        "default, the model of the recipe. A pretrained model sets the variant, weights, image size and normalization.",
    )
    flags.DEFINE_string(
        "weights",
        None,
        "Initial weights: a published name such as augreg, hf:OWNER/NAME on the Hugging Face hub, a file, or 'none' to "
        "train from scratch.",
    )
    flags.DEFINE_string(
        "adapt", None, "Weights to train: all, head, last(4), bias, lora or lora(rank=8). Default: the recipe's."
    )
    flags.DEFINE_float("epochs", None, "Passes over the training images, in place of a number of steps.", 0.0)
    flags.DEFINE_integer("steps", None, "Number of steps (the field total_steps).", 0)
    flags.DEFINE_string(
        "time",
        None,
        "Time limit for training, such as 20m or 1h30m. A few steps are measured to set total_steps.",
    )
    flags.DEFINE_integer("batch_size", None, "Images per step, over all devices (data.batch_size).", 1)
    flags.DEFINE_float("learning_rate", None, "Highest learning rate (optim.learning_rate).", 0.0)
    flags.DEFINE_integer("image_size", None, "Height and width of the images; by default as in the recipe.", 1)
    flags.DEFINE_integer("seed", None, "Seed of the initial weights, the order of the images and the augmentation.")
    flags.DEFINE_string("config", None, "Recipe: its name, such as digits, or a file that defines get_config().")
    flags.DEFINE_multi_string(
        "override", [], "Change a field of the recipe: FIELD=VALUE, the same as --config.FIELD=VALUE. May be repeated."
    )
    flags.DEFINE_bool("list_recipes", False, "List the recipes of the package and exit.")


def define_distribution_flags() -> None:
    """Define `--distribute`, `--tpu` and `--virtual_devices`."""
    define_distribute_flag()
    flags.DEFINE_string("tpu", "local", "With --distribute=tpu: 'local', a TPU's name, or grpc://HOST:8470.")
    flags.DEFINE_integer("virtual_devices", 0, "Number of virtual devices to split the CPU into, for tests.", 0)


def define_distribute_flag() -> None:
    """Define `--distribute`."""
    flags.DEFINE_string(
        "distribute",
        "auto",
        f"Devices to use: {', '.join(STRATEGIES)}, or with KERAS_BACKEND=jax a mesh such as 'mesh(data=8, fsdp=4)'. "
        "auto takes all devices of the machine.",
    )
    flags.register_validator(
        "distribute",
        lambda name: name in STRATEGIES or name.startswith("mesh("),
        f"--distribute must be one of {', '.join(STRATEGIES)}, or a mesh such as 'mesh(data=8, fsdp=4)'.",
    )


def define_model_flags(
    kinds: str = "Run directory, .keras file, checkpoint or exported artifact.",
    preprocess: str = "; needed if the model has none",
    class_names: bool = True,
) -> None:
    """Define the flags that open a trained model; `--class_names` for programs that show or compare class names."""
    flags.DEFINE_string("model", None, f"{kinds} A checkpoint may have a name: hf:OWNER/NAME, ViT_B16:augreg.")
    define_checkpoint_flag()
    flags.DEFINE_string("preprocess", None, f"Preprocessing string, such as 'value_range(-1, 1)'{preprocess}.")
    if class_names:
        flags.DEFINE_string("class_names", None, "File with one class name per line, in place of the model's names.")
    flags.DEFINE_integer("image_size", None, "Height and width of the images; by default the model's image size.", 1)


def model_options() -> dict[str, Any]:
    """Return the arguments of `open_predictor` from the flags that open a trained model, except the path."""
    names = ("preprocess", "class_names", "checkpoint", "image_size")
    return {name: flags.FLAGS[name].value for name in names if name in flags.FLAGS}


def define_checkpoint_flag() -> None:
    """Define `--checkpoint`."""
    flags.DEFINE_string(
        "checkpoint",
        None,
        "Weights of a run: best, last, or the step of a checkpoint. By default, the weights in model.keras.",
    )


def define_images_flag(purpose: str) -> None:
    """Define `--images`."""
    flags.DEFINE_multi_string(
        "images", [], f"Image file, folder or pattern {purpose}; by default the evaluation data. May be repeated."
    )
    _check_flag("images", image_files.check_local)


def define_on_bad_image_flag(default: str | None = None) -> None:
    """Define `--on_bad_image`. Without a default, the recipe of the model determines the value."""
    which = "" if default else "; by default as in the run's recipe"
    flags.DEFINE_enum(
        "on_bad_image", default, ["error", "skip"], f"Whether an unreadable image is an error or skipped{which}."
    )


def define_scale_flags(part: str) -> None:
    """Define `--batch_size`, `--part_size`, `--shard` and the flags of Ray. `part` says what `--part_size` is for."""
    flags.DEFINE_integer("batch_size", 16, "Images per call of the model.", 1)
    flags.DEFINE_integer("part_size", 1024, part, 1)
    flags.DEFINE_string("shard", None, "Part of the images, such as 3/64. The parts 0/64 to 63/64 are disjoint.")
    flags.DEFINE_enum("engine", None, ["ray"], "ray: work on a Ray cluster, and write a folder of Parquet files.")
    flags.DEFINE_string("ray_address", None, "--engine=ray: network address of the cluster; default: this machine.")
    flags.DEFINE_integer("workers", None, "--engine=ray: number of workers; by default one per GPU, or per machine.", 1)
    flags.register_validator("shard", lambda text: in_shard("", text or "0/1") is not None)


def in_shard(path: str, shard: str | None = None) -> bool:
    """Return whether an image belongs to a part of the images, by default that of `--shard`, by a hash of its path."""
    found = re.fullmatch(r"(\d+)/(\d+)", shard or flags.FLAGS.shard or "0/1")
    if not found or int(found[1]) >= int(found[2]):
        raise ValueError(f"--shard must be I/N with I from 0 to N - 1, such as 0/64. Received: --shard={shard}.")
    return int.from_bytes(hashlib.sha256(os.fsencode(path)).digest()[:8]) % int(found[2]) == int(found[1])


def define_data_flag() -> None:
    """Define `--data`, which may also be the first argument; see `data_argument`."""
    flags.DEFINE_string("data", None, "Data set, such as folder:images; may also be given as the first argument.")


def define_json_flag(form: str = "a table") -> None:
    """Define `--json`."""
    flags.DEFINE_bool("json", False, f"Write JSON instead of {form}.")


def define_output_flag(text: str = "Where to write.") -> None:
    """Define `--output`."""
    define_written_flag("output", text)


def define_written_flag(name: str, text: str, schemes: Iterable[str] = storage.SCHEMES) -> None:
    """Define a flag for a file or directory to write. URLs must use one of the `schemes`."""
    flags.DEFINE_string(name, None, text)
    _check_flag(name, lambda path: file_io.check_writable(path or "", schemes))


def define_export_flags(num_images: int) -> None:
    """Define the flags of the programs that compare an artifact with its model."""
    define_model_flags("Run directory, .keras file or checkpoint.")
    define_images_flag("to verify with")
    by_default = f"by default {num_images}, or more if the limits need more"
    flags.DEFINE_integer("num_images", None, f"Number of images to verify with; {by_default}.", 1)
    difference = (
        "Largest difference of probabilities, of values (in standard deviations), or of masks (fraction of pixels)"
    )
    flags.DEFINE_float("max_difference", None, f"{difference}. The default depends on the precision.")
    flags.DEFINE_float("min_agreement", None, "Minimum top-1 agreement. The default depends on the precision.")
    define_on_bad_image_flag()
    define_json_flag("text")


def data_argument(arguments: Sequence[str]) -> str | None:
    """Return the data set of `--data` or of the first argument."""
    given = [*([flags.FLAGS.data] if "data" in flags.FLAGS and flags.FLAGS.data else []), *arguments]
    if len(given) > 1:
        raise ValueError(f"Expected one data set. Received: {', '.join(map(repr, given))}.")
    return given[0] if given else None


def choices_from_flags(arguments: Sequence[str]) -> chosen_recipe.Choices:
    """Return the choices from the flags of `define_recipe_flags` and from the other arguments."""
    options = flags.FLAGS
    names = ("config", "model", "weights", "image_size", "adapt", "time", "epochs")
    chosen: dict[str, str] = {}
    of_flags = [(field, options[foreign_names.flag_of(field)].value) for field in FIELDS_OF_FLAGS]
    overrides = [override.partition("=")[::2] for override in options.override]
    for field, text in [*((field, str(value)) for field, value in of_flags if value is not None), *overrides]:
        if text != chosen.setdefault(field, text) and _literal(chosen[field]) != _literal(text):
            raise ValueError(f"{field} has two values, {chosen[field]} and {text}. Pass one of them.")
    given = {name: options[name].value for name in names}
    return chosen_recipe.Choices(data_argument(arguments), **given, overrides=chosen, as_text=True)


def recipe_from_flags(
    arguments: Sequence[str] = (), workdir: str | None = None, count: "Callable[[Recipe], int] | None" = None
) -> "Recipe":
    """Return the checked recipe of the flags; see `chosen_recipe.recipe_of`."""
    return chosen_recipe.recipe_of(choices_from_flags(arguments), workdir, count)


def default_workdir(arguments: Sequence[str] = ()) -> str:
    """Return the run directory to use without `--workdir`."""
    return choices_from_flags(arguments).workdir()


def _literal(text: str) -> Any:
    """Return the value of a text in Python syntax, or the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _check_flag(name: str, check: Callable[[Any], object]) -> None:
    """Check the value of a flag with a function that raises a ValueError."""
    flags.register_validator(name, lambda value: check(value) is None)
