"""Section of the page with images and predictions, and the data of its maps."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.inspection import html, plots
from keras_vit.util.formatting import percent

_CHIPS = 3  # predictions per image
_MASK_CHIPS = 8  # classes per mask
_SMALL = 64  # images with fewer pixels per side are enlarged without smoothing
_HELP = "Bright patches count most. The images are resized and cropped as for the model."
_MASK_HELP = "Each image is followed by its predicted mask and, if known, its true mask."
_CONTROLS = """<div class="controls">
<label>Show <select id="view"></select></label>
<label class="wide"><span>Layer <output id="layer-name" for="layer"></output></span>
<input type="range" id="layer" min="1" max="1" step="1" value="1"></label>
<label>Head <select id="head"></select></label>
<label>Opacity <input type="range" id="opacity" min="0" max="100" value="65"></label>
<label class="check"><input type="checkbox" id="smooth" checked> smooth</label>
<span class="scale">none <canvas id="scale" width="256" height="1"></canvas> most</span>
<p id="view-help"></p>
</div>
"""


@dataclasses.dataclass(frozen=True)
class View:
    """A kind of map over the images. `key` is the key of its maps in `ImageCard.maps`."""

    key: str
    title: str
    help: str
    frames: tuple[str, ...]  # positions of the slider, such as layer names
    heads: int = 0  # number of maps per frame in addition to the mean of the heads


@dataclasses.dataclass(frozen=True)
class ImageCard:
    """An image with its predictions, the most likely first, and its maps."""

    name: str
    pixels: np.ndarray  # uint8 [H, W, C], resized and cropped
    predictions: Sequence[tuple[str, float]] = ()
    maps: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # [frames, 1 + heads, h, w] by view
    truth: str | None = None  # None if unknown, in which case `correct` is also None
    correct: bool | None = None
    colors: Sequence[Sequence[int]] = ()  # colors of the predicted classes in the overlays
    overlays: Sequence[tuple[str, np.ndarray]] = ()  # titles and further images, uint8 [H, W, 3]
    note: str = ""
    values: Sequence[tuple[str, str]] = ()  # predicted values: name and formatted number


@dataclasses.dataclass(frozen=True)
class Gallery:
    """Images under a heading, without maps. `help` is the text of the "?" button."""

    title: str
    help: str
    images: Sequence[ImageCard]


def gallery(shown: Gallery) -> str:
    """Return the HTML of a gallery, which is empty without images."""
    content = _grid(map(_figure, shown.images), shown.images)
    return html.card(shown.title, shown.help, content) if shown.images else ""


def section(images: Sequence[ImageCard], views: Sequence[View], num_mistakes: int | None) -> str:
    """Return the HTML of the section: the controls of the maps, then the images, mistakes first."""
    if not images:
        return ""
    mistakes = [index for index, image in enumerate(images) if image.correct is False]
    hidden = num_mistakes is not None and num_mistakes > len(mistakes)
    groups = [
        (f"Mistakes: the {len(mistakes)} most confident of {num_mistakes:,}" if hidden else "Mistakes", mistakes),
        ("Correct predictions", [index for index, image in enumerate(images) if image.correct]),
        (
            "The lowest mIoU first" if any(image.note for image in images) else "Predictions",
            [index for index, image in enumerate(images) if image.correct is None],
        ),
    ]
    named = [(title, indices) for title, indices in groups if indices]
    parts = [_CONTROLS if views else ""]
    for title, indices in named:
        if len(named) > 1 or title != "Predictions":
            parts.append(f"<h3>{title}</h3>")
        parts.append(
            _grid([_figure(images[index], index if views else None) for index in indices], images, bool(views))
        )
    help_text = [_MASK_HELP] if any(image.overlays for image in images) else []
    help_text += [_HELP] if views else []
    return html.card("Where the model looks" if views else "Predictions", " ".join(help_text), "".join(parts))


def data(images: Sequence[ImageCard], views: Sequence[View]) -> dict[str, Any]:
    """Return the data for the script that draws the maps."""
    return {
        "colors": plots.heat_colors() if views else [],
        "views": [dataclasses.asdict(view) for view in views],
        "images": [
            {"name": image.name, "maps": {key: _map(values) for key, values in image.maps.items()}} for image in images
        ],
    }


def _grid(figures: Iterable[str], images: Sequence[ImageCard], has_maps: bool = False) -> str:
    is_plain = not has_maps and not any(image.overlays for image in images)
    return f'<div class="images{" plain" if is_plain else ""}">\n{"".join(figures)}</div>\n'


def _figure(image: ImageCard, map_number: int | None = None) -> str:
    """Return the HTML of an image. With `map_number`, the script finds the image and draws its maps."""
    name = html.escape(image.name)
    small = ' class="small"' if max(image.pixels.shape[:2]) < _SMALL else ""
    identity = "" if map_number is None else f' id="image-{map_number}"'
    original = f'<img{identity}{small} alt="{name}" src="{_url(image.pixels)}">'
    for title, pixels in image.overlays:
        title = html.escape(title)
        original += f'<img{small} alt="{name}: {title}" title="{title}" src="{_url(pixels)}">'
    overlay = (
        "" if map_number is None else f'<canvas id="overlay-{map_number}" role="img" aria-label="{name}"></canvas>'
    )
    return (
        f'<figure class="image"><div class="pair">{original}{overlay}</div>'
        f'<figcaption><span class="name" title="{name}"><bdi>{name}</bdi></span>{_chips(image)}</figcaption></figure>\n'
    )


def _url(pixels: np.ndarray) -> str:
    source = plots.encode_image(pixels)
    return html.data_url(source, "image/png" if source.startswith(b"\x89PNG") else "image/jpeg")


def _chips(image: ImageCard) -> str:
    chips = [f'<li class="chip truth"><span>{html.escape(image.note)}</span></li>'] if image.note else []
    for rank, (label, probability) in enumerate(image.predictions[: _MASK_CHIPS if image.colors else _CHIPS]):
        kind, mark = "", ""
        if image.colors:
            red, green, blue = image.colors[rank]
            mark = f'<i style="background:rgb({red},{green},{blue})"></i>'
        if rank == 0 and image.correct is not None:
            kind, mark = (" right", "✓ ") if image.correct else (" wrong", "✗ ")
        label = html.escape(label)
        chips.append(
            f'<li class="chip{kind}"><span title="{label}">{mark}{label}</span><b>{percent(probability)}</b></li>'
        )
    for name, text in image.values:
        name, text = html.escape(name), html.escape(text)
        chips.append(f'<li class="chip"><span title="{name}: {text}">{name}</span><b>{text}</b></li>')
    if image.truth is not None and not image.correct:
        truth = html.escape(image.truth)
        chips.append(f'<li class="chip truth"><span title="{truth}">true class: {truth}</span></li>')
    return f'<ul class="chips">{"".join(chips)}</ul>' if chips else ""


def _map(values: np.ndarray) -> dict[str, Any]:
    """Return maps as base64, each scaled to its maximum."""
    values = np.maximum(np.nan_to_num(np.asarray(values, np.float32)), 0.0)
    largest = values.max(axis=(-2, -1), keepdims=True)
    scaled = np.round(255 * values / np.maximum(largest, 1e-30)).astype(np.uint8)
    return {"grid": list(values.shape[-2:]), "values": html.to_base64(scaled.tobytes())}
