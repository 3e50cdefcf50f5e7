"""Public names that `import keras_vit` imports immediately."""

try:
    import keras  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        f"keras_vit needs Keras with a backend, and the module {error.name!r} is not installed. Install one: "
        "`pip install 'keras-vision-transformers[cpu]'` (or [gpu], [tpu]) for TensorFlow; [jax] for JAX, chosen by the "
        "environment variable KERAS_BACKEND=jax."
    ) from error

from collections.abc import Iterable

from keras_vit import applications, checkpoints, layers, models, zoo
from keras_vit.adaptation import adapt, load_adapter, merge_adapter, save_adapter
from keras_vit.applications import *  # noqa: F403 - the published variants, such as ViT_B16
from keras_vit.applications import create_model
from keras_vit.checkpoints import load_checkpoint, model_from_checkpoint, save_checkpoint
from keras_vit.models import (
    BiTResNet,
    MaskedAutoencoder,
    MaskedPatchPredictor,
    VisionTransformer,
    feature_extractor,
    list_models,
    preprocess_input,
)
from keras_vit.util import checks, foreign_names
from keras_vit.version import __version__
from keras_vit.zoo import decode_predictions, list_weights


def hint(name: str, names: Iterable[str]) -> str:
    """Return a hint that suggests one of the public `names` for an unknown name, or an empty string."""
    if name in foreign_names.NAMES:
        return f" Use keras_vit.{foreign_names.NAMES[name]}."

    def plain(text):
        return text.replace("_", "").lower()

    same = [f" Did you mean {own!r}?" for own in names if plain(own) == plain(name)]
    return (same or [checks.nearest(name, names)])[0]


__all__ = [
    "BiTResNet",
    "MaskedAutoencoder",
    "MaskedPatchPredictor",
    "VisionTransformer",
    "__version__",
    "adapt",
    "checkpoints",
    "create_model",
    "decode_predictions",
    "feature_extractor",
    "layers",
    "list_models",
    "list_weights",
    "load_adapter",
    "load_checkpoint",
    "merge_adapter",
    "model_from_checkpoint",
    "models",
    "preprocess_input",
    "save_adapter",
    "save_checkpoint",
    "zoo",
    *(name for name in vars(applications) if name[0].isupper() and "_" in name),  # published variants, such as ViT_B16
]
