"""Published checkpoints: their names and URLs, and the sizes and accuracies that their owners published.

References:
    - [vision_transformer, available models](https://github.com/google-research/vision_transformer#available-vit-models)
    - [How to train your ViT?](https://arxiv.org/abs/2106.10270)
    - [Big Transfer](https://github.com/google-research/big_transfer)
    - [DINOv2](https://github.com/facebookresearch/dinov2)
    - [SigLIP 2](https://github.com/google-research/big_vision)
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from keras_vit.zoo.hub import PREFIX
from keras_vit.zoo.variants import BIT, full_name

_AUGREG, _ORIGINAL = "vit_models/augreg", "vit_models/imagenet21k"
_CLASSES = {"imagenet2012": 1000, "imagenet21k": 21_843}
# Project and paper by the beginning of the path. All of these weights are licensed under Apache-2.0.
_SOURCES = {
    _AUGREG: "vision_transformer, arXiv:2106.10270",
    _ORIGINAL: "vision_transformer, arXiv:2010.11929",
    "vit_models/sam": "vision_transformer, arXiv:2106.01548",
    "bit_models/distill": "big_transfer, arXiv:2106.05237",
    "bit_models": "big_transfer, arXiv:1912.11370",
    "hf:facebook/dinov2-with": "dinov2, arXiv:2309.16588",
    "hf:facebook/dinov2": "dinov2, arXiv:2304.07193",
    "hf:google/siglip2": "big_vision, arXiv:2502.14786",
    "hf:google/siglip": "big_vision, arXiv:2303.15343",
}


@dataclasses.dataclass(frozen=True)
class PublishedWeights:
    """A published checkpoint.

    Attributes:
        name: Name to pass as `weights`.
        model: Name of the model, as in `keras_vit.list_models()`.
        path: Bucket and path below `https://storage.googleapis.com/`, or `hf:OWNER/NAME` on the Hugging Face hub.
        pretraining: Data set used for pre-training.
        head: Data set with the classes of the head; None for an encoder without a head.
        resolution: Height and width, in pixels, of the images in the last training.
        accuracy: Published top-1 accuracy on ImageNet in percent, or None if not published.
        size_mib: Published size of the file in MiB, or None if not published.
        pool_padding: Padding of the max-pooling in the training of a BiT; None for other models.
        arguments: Arguments of the model that differ from the defaults of its constructor.
        license: License of the weights.

    Example:
    >>> entry = keras_vit.list_weights("ViT-B/16")[0]
    >>> entry.name, entry.resolution, entry.classes
    ('augreg', 384, 1000)
    """

    name: str
    model: str
    path: str
    pretraining: str
    head: str | None
    resolution: int
    accuracy: float | None = None
    size_mib: int | None = None
    pool_padding: str | None = None
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    license: str = "Apache-2.0"

    @property
    def url(self) -> str:
        """URL of the published file or model."""
        if self.path.startswith(PREFIX):
            return "https://huggingface.co/" + self.path.removeprefix(PREFIX)
        return "https://storage.googleapis.com/" + self.path.replace("+", "%2B")

    @property
    def source(self) -> str:
        """Project that published the checkpoint, and its paper."""
        return next(source for start, source in _SOURCES.items() if self.path.startswith(start))

    @property
    def classes(self) -> int | None:
        """Number of classes of the head; None without a head."""
        return None if self.head is None else _CLASSES[self.head]


# By model: pre-trained file, its size in MiB, learning rate of the fine-tuning at 384 pixels, accuracy. The README of
# the reference implementation recommends these checkpoints, which have the best pre-training accuracy of each model.
_RECOMMENDED = {
    "ViT-L/16": ("L_16-i21k-300ep-lr_0.001-aug_strong1-wd_0.1-do_0.0-sd_0.0", 1243, "0.01", 85.59),
    "ViT-B/16": ("B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0", 391, "0.03", 85.49),
    "ViT-S/16": ("S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0", 115, "0.03", 83.73),
    "R50+ViT-L/32": ("R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1", 1337, "0.01", 85.99),
    "R26+ViT-S/32": ("R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0", 170, "0.01", 83.85),
    "ViT-Ti/16": ("Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", 37, "0.03", 78.22),
    "ViT-B/32": ("B_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0", 398, "0.01", 83.59),
    "ViT-S/32": ("S_32-i21k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0", 118, "0.01", 79.58),
    "R+ViT-Ti/16": ("R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", 40, "0.03", 75.40),
}
_AT_224 = {
    "ViT-Ti/16": "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.03-res_224",
    "ViT-S/32": "S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.03-res_224",
    "ViT-S/16": "S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.03-res_224",
    "ViT-B/32": "B_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.03-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.03-res_224",
    "ViT-B/16": "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.01-res_224",
    "ViT-B/8": "B_8-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.01-res_224",
    "ViT-L/16": "L_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1--imagenet2012-steps_20k-lr_0.01-res_224",
}
_ORIGINALS = ("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32", "ViT-H/14", "R50+ViT-B/16")
_SMALL_IMAGES = {"ViT-B/16": 81.2, "ViT-L/16": 82.7}
_SAM = ("ViT-B/16", "ViT-B/32")


@functools.cache
def catalog() -> tuple[PublishedWeights, ...]:
    """Return all published checkpoints that have a name."""
    return (*_augreg(), *_originals(), *_sam(), *_bit(), *_dinov2(), *_siglip())


def _augreg():
    for model, (stem, size, rate, accuracy) in _RECOMMENDED.items():
        tuned = f"{_AUGREG}/{stem}--imagenet2012-steps_20k-lr_{rate}-res_384.npz"
        yield PublishedWeights("augreg", model, tuned, "imagenet21k", "imagenet2012", 384, accuracy)
        plain = f"{_AUGREG}/{stem}.npz"
        yield PublishedWeights("augreg-imagenet21k", model, plain, "imagenet21k", "imagenet21k", 224, size_mib=size)
    for model, stem in _AT_224.items():
        yield PublishedWeights("augreg-224", model, f"{_AUGREG}/{stem}.npz", "imagenet21k", "imagenet2012", 224)


def _originals():
    for model in _ORIGINALS:
        stem = model.replace("/", "_")
        yield PublishedWeights("imagenet21k", model, f"{_ORIGINAL}/{stem}.npz", "imagenet21k", "imagenet21k", 224)
        if model == "ViT-H/14":
            continue
        tuned = f"{_ORIGINAL}+imagenet2012/{stem}"
        name = "imagenet21k+imagenet2012"
        yield PublishedWeights(name, model, f"{tuned}.npz", "imagenet21k", "imagenet2012", 384)
        if model in _SMALL_IMAGES:
            accuracy = _SMALL_IMAGES[model]
            yield PublishedWeights(
                f"{name}-224", model, f"{tuned}-224.npz", "imagenet21k", "imagenet2012", 224, accuracy
            )


def _sam():
    for model in _SAM:
        path = f"vit_models/sam/{model.replace('/', '_')}.npz"
        yield PublishedWeights("sam", model, path, "imagenet2012", "imagenet2012", 224)


def _bit():
    for model in BIT:
        stem = model.removeprefix("BiT-")
        for name, path, head in (
            ("bit-s", f"BiT-S-{stem}", "imagenet2012"),
            ("bit-m", f"BiT-M-{stem}", "imagenet21k"),
            ("bit-m-imagenet2012", f"BiT-M-{stem}-ILSVRC2012", "imagenet2012"),
        ):
            before = "imagenet2012" if name == "bit-s" else "imagenet21k"
            size = 480 if name == "bit-m-imagenet2012" else 224
            yield PublishedWeights(name, model, f"bit_models/{path}.npz", before, head, size, pool_padding="zeros")
    for size, accuracy in ((224, 82.8), (160, 80.5)):
        path, data = f"bit_models/distill/R50x1_{size}.npz", ("imagenet21k", "imagenet2012")
        options: dict[str, Any] = {"accuracy": accuracy, "pool_padding": "infinity"}
        yield PublishedWeights(f"distilled-{size}", "BiT-R50x1", path, *data, size, **options)


# By model: name on the hub, and size of the file in MiB (four bytes per parameter).
_DINOV2 = {
    "ViT-S/14": ("small", 84),
    "ViT-B/14": ("base", 330),
    "ViT-L/14": ("large", 1161),
    "ViT-giant2/14": ("giant", 4335),
}
# By model: name on the hub, and the resolutions of SigLIP and SigLIP 2. The first resolution has no suffix in the name.
_SIGLIP = {
    "ViT-B/16": ("base-patch16", (224, 256, 384, 512), (224, 256, 384, 512)),
    "ViT-B/32": ("base-patch32", (), (256,)),
    "ViT-L/16": ("large-patch16", (256, 384), (256, 384, 512)),
    "ViT-So400m/14": ("so400m-patch14", (224, 384), (224, 384)),
    "ViT-So400m/16": ("so400m-patch16", (), (256, 384, 512)),
}


def _dinov2():
    arguments = {"activation": "gelu", "layer_scale": 1.0}
    for model, (size, mib) in _DINOV2.items():
        own = {**arguments, "activation": "silu"} if size == "giant" else arguments
        for name, stem, registers in (("dinov2", "dinov2", 0), ("dinov2-registers", "dinov2-with-registers", 4)):
            path = f"{PREFIX}facebook/{stem}-{size}"
            options = {**own, "num_registers": registers}
            yield PublishedWeights(name, model, path, "lvd142m", None, 518, size_mib=mib, arguments=options)


def _siglip():
    for model, (stem, *resolutions) in _SIGLIP.items():
        for name, sizes in zip(("siglip", "siglip2"), resolutions, strict=True):
            for size in sizes:
                path, suffix = f"{PREFIX}google/{name}-{stem}-{size}", "" if size == sizes[0] else f"-{size}"
                # 384 is not a multiple of 14: the model uses 27 patches, 378 pixels.
                pixels = size // 14 * 14 if model.endswith("/14") else size
                arguments = {"pooling": "map", "class_token": False}
                yield PublishedWeights(f"{name}{suffix}", model, path, "webli", None, pixels, arguments=arguments)


class WeightsTable(list):
    """A list of `PublishedWeights` that prints as a table."""

    def __repr__(self) -> str:
        rows = [("model", "weights", "size", "resolution", "accuracy", "pretraining", "head", "source")]
        for entry in self:
            size = "" if entry.size_mib is None else f"{entry.size_mib} MiB"
            accuracy = "" if entry.accuracy is None else f"{entry.accuracy}%"
            image = str(entry.resolution)
            rows.append(
                (entry.model, entry.name, size, image, accuracy, entry.pretraining, entry.head or "none", entry.source)
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)


def list_weights(model: str | None = None) -> WeightsTable:
    """Return the published checkpoints of a model, or of all models.

    Args:
        model: A name of `keras_vit.list_models()`, or the name of a constructor, such as `"ViT_B16"`. None for all
            models.

    Returns:
        A list of `PublishedWeights`, which prints as a table. To load an entry, pass `weights=entry.name`.

    Raises:
        ValueError: If the model does not exist.

    Example:
    >>> [entry.name for entry in keras_vit.list_weights("ViT_S16")]
    ['augreg', 'augreg-imagenet21k', 'augreg-224']
    """
    model = full_name(model) if model is not None else None
    return WeightsTable(entry for entry in catalog() if model in (None, entry.model))
