"""Names of weights: published names, models of the Hugging Face hub, URLs and paths."""

import dataclasses
import os
import re
import urllib.parse

from keras_vit.util import checks, storage
from keras_vit.zoo import cache, hub
from keras_vit.zoo.published import PublishedWeights, list_weights
from keras_vit.zoo.variants import constructor_name, list_models

_FILE_SUFFIXES = (".npz", ".safetensors", ".keras", ".h5", ".json")
# The name of an AugReg file describes its pre-training: model, data, epochs and recipe.
_AUGREG_STEM = re.compile(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*-i(21|1)k(_30)?-[\w.+-]+")


@dataclasses.dataclass(frozen=True)
class WeightsName:
    """Weights that a name refers to.

    Attributes:
        text: The name as the caller passed it.
        location: Argument of `fetch`: a model of the hub, a bucket URL, or a path in a public bucket; None for a path.
        entry: Published weights with this name; None for other names.
    """

    text: str
    location: str | None = None
    entry: PublishedWeights | None = None

    def local(self) -> str:
        """Return the path of the weights, and download them if necessary; see `resolve`."""
        return self.text if self.location is None else cache.fetch(self.location)

    def pinned(self) -> str:
        """Return the location, or the path. The name of a model of the hub includes the downloaded commit."""
        if self.location is None or not self.location.startswith(hub.PREFIX):
            return self.location or self.text
        return hub.pinned(self.location, self.local())


def resolve(weights: str | os.PathLike[str], model: str | None = None) -> str:
    """Return the path of weights, and download them if necessary; see `parse_weights_name`."""
    return parse_weights_name(weights, model).local()


def parse_weights_name(weights: str | os.PathLike[str], model: str | None = None) -> WeightsName:
    """Parse a name of weights, without a download.

    Args:
        weights: One of the following:
            - the path of a checkpoint;
            - a model of the Hugging Face hub, `hf:OWNER/NAME`, with `@REVISION` to pin a tag or commit;
            - a model and a name of `keras_vit.list_weights()`, such as `"ViT_B16:augreg"`;
            - the name of an AugReg file, from the column `filename` or `adapt_filename` of AugReg's index;
            - a `gs://` or `https://` URL.
        model: Name of the model, as in `keras_vit.list_models()`, or of its constructor. If `model` is passed, the name
            of published weights can omit the model, as in `"augreg"`.
    """
    weights = checks.path("weights", weights)
    if os.path.exists(weights):
        return WeightsName(weights)
    entry = find(model, weights)
    if entry is not None:
        return WeightsName(weights, entry.path, entry)
    if of_hub := hub.canonical_name(weights):
        return WeightsName(weights, of_hub)
    if storage.is_bucket_url(weights):
        return WeightsName(weights, weights)
    if weights.startswith(("gs://", "https://")):
        return WeightsName(weights, _path_of(weights))
    if _AUGREG_STEM.fullmatch(weights.removesuffix(".npz")):
        return WeightsName(weights, f"vit_models/augreg/{weights.removesuffix('.npz')}.npz")
    own, colon, name = weights.partition(":")
    if colon and _is_model(own):
        raise _unknown(own, name)
    if model is None or weights.endswith(_FILE_SUFFIXES) or os.sep in weights:
        raise FileNotFoundError(f"There is no checkpoint or model at {weights!r}.{_hint(weights)}")
    raise _unknown(model, weights)


def find(model: str | None, weights: str) -> PublishedWeights | None:
    """Return the published weights with a name, or None. `model` is None if `weights` begins with the model."""
    own, _, name = weights.rpartition(":")
    model = own if _is_model(own) else model
    return next((entry for entry in list_weights(model) if entry.name == name), None) if model else None


def _is_model(name: str) -> bool:
    return name in (*list_models(), *map(constructor_name, list_models()))


def _unknown(model: str, weights: str) -> ValueError:
    """Return the error for a name that is not among the published weights of a model."""
    entries = list_weights(model)
    names = [entry.name for entry in entries]
    hint = checks.nearest(weights, names)
    if "imagenet" in weights.lower() and "21k" not in weights:  # Keras' name for weights of 1,000 classes
        classifiers = [entry for entry in entries if entry.head == "imagenet2012"]
        best = max(classifiers, key=lambda entry: entry.accuracy or 0.0, default=None)
        hint = hint if best is None else f" Did you mean {best.name!r}?"
    return ValueError(
        f"{model} has no published weights named {weights!r}.{hint} "
        f"Published: {', '.join(names) or 'none'}. Or pass the path of a checkpoint."
    )


def _hint(path: str) -> str:
    """Return a hint on the spelling of a name that is not a path."""
    if re.fullmatch(r"[\w.-]+/[\w.-]+", path) and not path.endswith(_FILE_SUFFIXES):
        return f" For the model of this name on the Hugging Face hub: 'hf:{path}'."
    models = [entry.model for entry in list_weights() if entry.name == path]
    if models:
        return f" For published weights, add the model: '{constructor_name(models[0])}:{path}'."
    return checks.nearest(path, map(constructor_name, list_models()))


def _path_of(url: str) -> str:
    """Return the bucket and path in a URL, such as `gs://vit_models/sam/ViT-B_16.npz`."""
    parts = urllib.parse.urlsplit(url)
    path = parts.path.lstrip("/") if parts.scheme == "https" else f"{parts.netloc}{parts.path}"
    if parts.scheme == "https" and parts.netloc != cache.HOST:
        raise ValueError(
            f"Weights are only downloaded from {cache.HOST} and the Hugging Face hub. Received: {url!r}. Download "
            "the file yourself, and pass its path."
        )
    path = urllib.parse.unquote(path)
    if any(part in ("", ".", "..") for part in path.split("/")) or "\\" in path:
        raise ValueError(f"{url!r} is not the URL of a file.")
    return path
