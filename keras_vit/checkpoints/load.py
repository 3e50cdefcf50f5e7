"""The functions that read checkpoints: `load_checkpoint`, `model_from_checkpoint` and `architecture_of`."""

from collections.abc import Sequence
from typing import Any

import keras
from absl import logging

from keras_vit import zoo
from keras_vit.checkpoints import recognition
from keras_vit.checkpoints.checkpoint import KINDS, Checkpoint, Kind
from keras_vit.checkpoints.formats.tensors import CheckpointError
from keras_vit.checkpoints.keras_files import load_keras_file
from keras_vit.checkpoints.match import Match, Options
from keras_vit.checkpoints.recognition import Path
from keras_vit.checkpoints.report import LoadReport, explain
from keras_vit.layers.interpolation import METHODS
from keras_vit.models.base import ConfiguredModel, check_own
from keras_vit.models.normalization import for_channels
from keras_vit.util import checks, file_io


def load_checkpoint(
    model: keras.Model,
    path: Path,
    head: str = "auto",
    method: str | None = None,
    strict: bool = True,
    *,
    grid: Sequence[int] | None = None,
    resize_patch: bool = False,
    adapt_channels: bool = False,
    allow_nonfinite: bool = False,
    config: Path | dict | None = None,
    prefix: str | None = None,
) -> LoadReport:
    """Load a checkpoint of any supported project into a model.

    The project is recognized from the file's content. Position embeddings are resized to the model's grid. The whole
    file is checked before the first variable changes, so a failed load leaves the model unchanged.

    Args:
        model: A `VisionTransformer`, a `BiTResNet` or a `MaskedAutoencoder`. A `VisionTransformer` with any pooling can
            load the encoder of a masked autoencoder.
        path: An `.npz` file (vision_transformer, AugReg, SAM, big_vision, BiT), a `.safetensors` file or directory
            (Hugging Face, timm, vit-pytorch, MAE), or a `.keras` or `.weights.h5` file. Names of weights are also
            supported; the file is downloaded at first use: `"hf:OWNER/NAME"`, `"hf:OWNER/NAME@REVISION"`, or a model
            and a name of `keras_vit.list_weights()`, such as `"ViT_B16:augreg"`.
        head: `"keep"` loads the file's head, and `"reset"` initializes the model's head. `"auto"` loads the head if the
            file and the model have the same number of classes.
        method: Method to resize position embeddings: `"reference"`, `"bilinear"`, `"bicubic"`, `"antialiased"` or
            `"dinov2"`. Defaults to the method of the project that wrote the file.
        strict: Whether the file and the model must match completely. If False, only the tensors that fit are loaded.
        grid: (height, width) of the file's position table in patches. Required if the grid is not square and the file
            does not specify it.
        resize_patch: Whether to resize a patch kernel of a different size with the pseudo-inverse (FlexiViT).
        adapt_channels: Whether to convert a kernel of 3 channels for a model with 1 channel or more than 3 channels.
        allow_nonfinite: Whether to load tensors that contain NaN or infinity.
        config: The model's `config.json`, as a path or a dictionary, for tensors without a `config.json` next to them.
        prefix: Prefix of the model to load, if the file contains several models, such as `"params/ema/"` or
            `"teacher."`. Defaults to the only model of a file, or to the usual prefix of a Flax file.

    Returns:
        A `LoadReport` of the variables and tensors that were loaded, skipped and changed.

    Raises:
        CheckpointError: If the file is damaged or does not fit the model. The message lists the differences and the
            arguments to change. The error is a `ValueError`.
        FileNotFoundError: If `path` does not exist.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), section 3.2
        - [FlexiViT](https://arxiv.org/abs/2212.08013)

    Example:
    >>> source = keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=32, classes=10)
    >>> path = keras_vit.save_checkpoint(source, "example/vit.npz")
    >>> model = keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=48, classes=3)
    >>> keras_vit.load_checkpoint(model, path).reset
    ['head/kernel', 'head/bias']
    """
    checks.choice("head", head, ("auto", "keep", "reset"))
    checks.choice("strict", strict, (False, True))
    if method is not None:
        checks.choice("method", method, METHODS)
    check_own(model, *(kind.model for kind in KINDS.values()))
    hints = recognition.hints_of(model.config.to_dict(), grid, prefix)
    with recognition.identify(path, hints, config) as checkpoint:
        options = Options(head, method, resize_patch, adapt_channels)
        return _load(model, checkpoint, options, strict, allow_nonfinite)


def model_from_checkpoint(
    path: Path,
    *,
    decoder: bool = False,
    head: str | keras.layers.Layer = "auto",
    method: str | None = None,
    grid: Sequence[int] | None = None,
    resize_patch: bool = False,
    adapt_channels: bool = False,
    allow_nonfinite: bool = False,
    config: Path | dict | None = None,
    prefix: str | None = None,
    **overrides: Any,
) -> keras.Model:
    """Build the model that a checkpoint belongs to, and load the checkpoint into it.

    A file may lack an argument, such as the number of attention heads (a timm file without `config.json`) or the
    image size (a convolutional network). The defaults of the file's project are then assumed and logged.

    Args:
        path: See `load_checkpoint`, which also describes the other arguments.
        decoder: Whether to build a `MaskedAutoencoder` with the file's decoder, instead of only the encoder.
        head: `"auto"`, `"keep"` or `"reset"`, or a Keras layer to use as the head; see `VisionTransformer`.
        method: Method to resize position embeddings. A model for images of any size also uses this method in each call.
        grid: (height, width) of the file's position table in patches.
        resize_patch: Whether to resize a patch kernel of another size.
        adapt_channels: Whether to convert a kernel of 3 channels for 1 channel or more than 3 channels.
        allow_nonfinite: Whether to load tensors that contain NaN or infinity.
        config: The model's `config.json`.
        prefix: Prefix of the model to load, if the file contains several models.
        **overrides: Arguments of `VisionTransformer` or `BiTResNet` that replace the file's arguments, such as
            `image_size`, `classes`, `num_heads` or `dropout_rate`.

    Returns:
        A `VisionTransformer` or `BiTResNet`; with `decoder=True`, a `MaskedAutoencoder`.

    Raises:
        CheckpointError: If the file is damaged, does not belong to a known project or does not fit the overrides. If
            `decoder=True` but the file has no decoder.
        FileNotFoundError: If `path` does not exist.

    Example:
    >>> source = keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=32, classes=10)
    >>> path = keras_vit.save_checkpoint(source, "example/vit.npz")
    >>> keras_vit.model_from_checkpoint(path, classes=3).output_shape
    (None, 3)
    """
    if isinstance(head, keras.layers.Layer):
        overrides, head = {**overrides, "head": head}, "reset"
    checks.choice("head", head, ("auto", "keep", "reset"))
    with recognition.identify(path, recognition.hints_of(overrides, grid, prefix), config) as checkpoint:
        if decoder and checkpoint.kind != "mae":
            raise CheckpointError(
                f"{checkpoint.path} contains a {KINDS[checkpoint.kind].noun} without a decoder. Received: decoder=True."
                " Leave it out, or pass the file of a masked autoencoder that includes the decoder."
            )
        if method is not None and checkpoint.kind != "bit":
            overrides = {"position_resizing": method, **overrides}
        if head == "auto" and not {"classes", "include_top"} & overrides.keys():
            head = "keep"  # nothing requests another head
        kind = KINDS[checkpoint.kind] if decoder else recognition.without_decoder(checkpoint)
        return _build(checkpoint, kind, overrides, Options(head, method, resize_patch, adapt_channels), allow_nonfinite)


def evaluated_model(
    path: Path | zoo.WeightsName, image_size: int | None = None, is_resized: bool = False
) -> tuple[keras.Model, str]:
    """Build the model of a checkpoint for an image size, by default the size for evaluating the checkpoint.

    With `is_resized`, the default is the size of the checkpoint's model, because the caller resizes the images. Also
    returns the SHA-256 of the files, which is computed before the weights are read.
    """
    wanted: dict[str, Any] = {"image_size": image_size} if image_size else {}
    with recognition.identify(path, recognition.hints_of(wanted, None, None)) as checkpoint:
        sha256, size = file_io.joint_sha256(checkpoint.source.files), checkpoint.evaluated_size
        if size and not (image_size or is_resized):
            wanted = {"image_size": size}
        return _build(checkpoint, recognition.without_decoder(checkpoint), wanted, Options("keep")), sha256


def _build(
    checkpoint: Checkpoint, kind: Kind, overrides: dict[str, Any], options: Options, allow_nonfinite: bool = False
) -> keras.Model:
    """Build the model of an open checkpoint, and load the checkpoint into it."""
    arguments = recognition.arguments_of(checkpoint, overrides, kind)
    try:
        model = kind.model.from_config({**arguments, **checkpoint.frozen})
    except (TypeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{kind.model.__name__} cannot be built from {checkpoint.path}: {error}") from error
    _load(model, checkpoint, options, strict=True, allow_nonfinite=allow_nonfinite)
    return model


def architecture_of(
    path: Path,
    *,
    grid: Sequence[int] | None = None,
    config: Path | dict | None = None,
    prefix: str | None = None,
    **overrides: Any,
) -> tuple[str, dict[str, Any]]:
    """Return the kind and the arguments of the model that a checkpoint belongs to. Only headers are read.

    Args:
        path: See `load_checkpoint`, which also describes the other arguments.
        grid: (height, width) of the file's position table in patches.
        config: The model's `config.json`.
        prefix: Prefix of the model to inspect, if the file contains several models.
        **overrides: Arguments that replace the file's arguments.

    Returns:
        A tuple of `"vit"` or `"bit"` and the arguments of `VisionTransformer` or `BiTResNet`. For a masked autoencoder,
        the arguments describe the encoder.

    Raises:
        CheckpointError: If the file is damaged or does not belong to a known project.
        FileNotFoundError: If `path` does not exist.

    Example:
    >>> source = keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=32, classes=10)
    >>> path = keras_vit.save_checkpoint(source, "example/vit.npz")
    >>> kind, arguments = keras_vit.checkpoints.architecture_of(path)
    >>> kind, arguments["hidden_size"], arguments["image_size"]
    ('vit', 32, 32)
    """
    with recognition.identify(path, recognition.hints_of(overrides, grid, prefix), config) as checkpoint:
        arguments = recognition.arguments_of(checkpoint, overrides, recognition.without_decoder(checkpoint))
        return "bit" if checkpoint.kind == "bit" else "vit", arguments


def _load(
    model: ConfiguredModel, checkpoint: Checkpoint, options: Options, strict: bool, allow_nonfinite: bool
) -> LoadReport:
    if not isinstance(model, (KINDS[checkpoint.kind].model, recognition.without_decoder(checkpoint).model)):
        noun = KINDS[checkpoint.kind].noun + (" without a decoder" if checkpoint.kind == "vit" else "")
        raise CheckpointError(
            f"{checkpoint.path} contains a {noun}. Received: a {type(model).__name__}. Use model_from_checkpoint."
        )
    match = Match(model, checkpoint, options)
    report = match.decide()
    if strict and report.problems():
        raise CheckpointError(explain(report, checkpoint, match.config))
    given = _weights_of_given_head(model, checkpoint, options.head)
    match.fill(allow_nonfinite)
    if given is not None:
        model.config.head.set_weights(given)
        report.loaded += [variable.path for variable in model.config.head.variables]
    elif model.config.head is not None:
        report.notes.append("no weights are loaded into the head")
    for text in report.notes:
        logging.info("%s: %s.", checkpoint.path, text)
    for name, text in checkpoint.doubtful.items():
        if match.config[name] == checkpoint.arguments[name]:  # a caller who passes another value knows better
            logging.warning("%s: %s=%r is assumed: %s.", checkpoint.path, name, match.config[name], text)
            report.notes.append(f"{name}={match.config[name]!r} is assumed: {text}")
    if not report.problems():
        model.checkpoint_layout = checkpoint.layout  # `save_checkpoint` writes the same names
    stated = checkpoint.input_normalization
    model.input_normalization = None if stated is None else for_channels(stated, model.config.channels)
    model.resizing = checkpoint.resizing
    if model.input_normalization is None:
        report.notes.append("input_normalization is not known: the file does not specify it for the model's channels")
    _compare_resizing(model, checkpoint, options, report)
    if "head/kernel" in report.loaded or given is not None:
        model.class_names = model.values = None
        model.class_names, model.values = checkpoint.class_names, checkpoint.values
        model.prediction_activation = checkpoint.prediction_activation
        _compare_resolution(model, checkpoint)
    return report


def _compare_resolution(model: ConfiguredModel, checkpoint: Checkpoint) -> None:
    """Warn if the model's image size differs from the training resolution of a published head."""
    entry, size = checkpoint.entry, model.config.image_size
    if entry is not None and entry.classes is not None and size not in (None, entry.resolution):
        logging.warning(
            "%s of %s was last trained on images of %d pixels, but the model takes %s. Its accuracy will differ "
            "from the published accuracy. Pass image_size=%d, or fine-tune.",
            *(entry.name, entry.model, entry.resolution, size, entry.resolution),
        )


def _weights_of_given_head(model: ConfiguredModel, checkpoint: Checkpoint, mode: str) -> list[Any] | None:
    """Return the weights of a custom head from a `.keras` file with an equal head, or None to keep the weights."""
    head = model.config.head
    if head is None or mode == "reset":
        return None
    if checkpoint.arguments.get("head") is not None:
        found = load_keras_file(checkpoint.path).config.head
        if type(found) is type(head) and [v.shape for v in found.variables] == [v.shape for v in head.variables]:
            return found.get_weights()
    if mode == "keep":
        raise CheckpointError(f"{checkpoint.path} does not have the model's head. Received: head='keep'. Leave it out.")
    return None


def _compare_resizing(model: ConfiguredModel, checkpoint: Checkpoint, options: Options, report: LoadReport) -> None:
    """Warn if a model for images of any size resizes positions differently from the file's project."""
    own = checkpoint.arguments.get("position_resizing")
    method = getattr(model.config, "position_resizing", None)
    if own in (None, method) or options.method is not None or model.config.image_size is not None:
        return
    if checkpoint.num_positions is not None:
        text = f"each call resizes positions by {method!r}, but the file's project resizes them by {own!r}"
        logging.warning("%s: %s. Build the model with position_resizing=%r.", checkpoint.path, text, own)
        report.notes.append(text)
