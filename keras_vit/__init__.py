"""Vision Transformers in Keras 3."""

try:
    import keras  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        f"keras_vit needs Keras with a backend, and the module {error.name!r} is not installed. Install one: "
        "`pip install 'keras-vision-transformers[cpu]'` (or [gpu], [tpu]) for TensorFlow; [jax] for JAX, chosen by the "
        "environment variable KERAS_BACKEND=jax."
    ) from error

from keras_vit import layers
from keras_vit.models import BiTResNet, VisionTransformer, create_model, list_models
from keras_vit.version import __version__

__all__ = ["BiTResNet", "VisionTransformer", "__version__", "create_model", "layers", "list_models"]
