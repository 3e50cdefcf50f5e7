"""Fine-tuning of a model on a folder of images in one call."""

import os
from collections.abc import Mapping
from typing import Any

from keras_vit.runs.trained_run import Run, load_run
from keras_vit.training import train
from keras_vit.training.chosen_recipe import Choices, recipe_of
from keras_vit.util import logs


def fine_tune(
    data: str | os.PathLike[str],
    *,
    model: str | None = None,
    workdir: str | os.PathLike[str] | None = None,
    weights: str | None = None,
    image_size: int | None = None,
    adapt: str | None = None,
    time: str | float | None = None,
    epochs: float | None = None,
    overrides: Mapping[str, Any] | None = None,
    distribute: str = "auto",
    tpu: str = "local",
    virtual_devices: int = 0,
    multi_host: bool = False,
    verbose: bool = True,
) -> Run:
    """Train a model on your own images, from pretrained weights if available.

    The function is equivalent to `keras-vit train DATA --model=MODEL --workdir=WORKDIR` and writes the same run
    directory. Settings that you do not pass are chosen for the images, the model and the machine by the rules in
    `docs/how_to/own_images.md`. A second call resumes a stopped run; a finished run is evaluated again and returned.

    Args:
        data: Folder with one folder of images per class, or any name that `keras_vit.data.open_source` opens.
        model: Pretrained model, such as `"hf:facebook/dinov2-small"` or the path of a checkpoint file, or a variant,
            such as `"ViT_S16"`. The default is DINOv2's ViT-S/14. If its weights cannot be downloaded, a small model
            is trained from scratch.
        workdir: Run directory; `runs/NAME` by default.
        weights: Initial weights of a variant, such as `"augreg-224"`; `"none"` trains from scratch.
        image_size: Height and width of the images in pixels.
        adapt: Weights to train, as in `keras_vit.adapt`: `"all"`, `"head"`, `"lora"`.
        time: Time limit for training in seconds, or as a text such as `"20m"`.
        epochs: Number of passes over the training images, in place of a time or a number of steps.
        overrides: Other fields of the recipe by their dotted paths, such as `{"optim.learning_rate": 1e-4}`.
        distribute: Devices to train on. `"auto"` takes all devices of the machine, `"one_device"` a single device.
            TensorFlow also takes `"mirrored"`, `"multi_worker"` and `"tpu"`. JAX also takes `"data_parallel"`, `"fsdp"`
            and a mesh such as `"mesh(data=8, fsdp=4)"`.
        tpu: With `distribute="tpu"` on TensorFlow: `"local"`, or the name or network address of a TPU.
        virtual_devices: Number of virtual devices to split the CPU into, for tests. 0 does not split the CPU.
        multi_host: Whether to train with the other hosts of a TPU pod or cluster job. JAX only.
        verbose: Whether to show the settings, the progress and the report.

    Returns:
        The finished run: `run.model` is the Keras model with the weights of the best validation, `run.class_names` are
        its classes, `run.results` are its metrics on the images that choose and on the test images, and
        `run.config["recipe"]` has all settings. `keras_vit.open_predictor(run.path)` predicts.

    Raises:
        FileNotFoundError: If the data or the weights do not exist.
        ValueError: If the data have only one class or too few images, if an argument is invalid, or if the run
            directory belongs to another recipe or other data.
        OSError: If the weights cannot be downloaded.

    Example:
    >>> run = keras_vit.fine_tune("photos", model="hf:facebook/dinov2-small", time="20m")  # doctest: +SKIP
    >>> run.results["test_accuracy"], run.model.predict(images).shape  # doctest: +SKIP
    (0.94, (4, 3))
    """
    choices = Choices(
        str(os.fspath(data)),
        model=model,
        weights=weights,
        image_size=image_size,
        adapt=adapt,
        time=time,
        epochs=epochs,
        overrides=dict(overrides or {}),
    )
    path = str(os.fspath(workdir or choices.workdir()))
    with logs.shown(verbose):
        train.train(
            recipe_of(choices, path),
            path,
            show=print if verbose else lambda text: None,
            distribute=distribute,
            tpu=tpu,
            virtual_devices=virtual_devices,
            multi_host=multi_host,
        )
    return load_run(path)
