"""The published variants as constructors, in the manner of `keras.applications`."""

import inspect
import os

from keras_vit import zoo
from keras_vit.models import BiTResNet, VisionTransformer, create_model
from keras_vit.models.factory import constructor_name

_DOCSTRING = """Builds {name}, with random or published weights.

    A functional `keras.Model` from float images in [-1, 1], `[B, height, width, channels]`, to logits `[B, classes]`.

    Args:
        weights: None for random initial values, the path of a checkpoint, or a name of
            `keras_vit.list_weights({name!r})`, downloaded once to Keras' cache. Position embeddings are resized to the
            model's grid. `classes` is by default what published weights have; a head for another number is left at its
            initial value.
        **arguments: Every other argument of `keras_vit.{model_class}`, whose docstring explains them.

    Returns:
        A `keras_vit.{model_class}`.

    Raises:
        ValueError: If an argument is out of range, or the checkpoint does not fit the model.

    References:
        - [{title}]({url})
    """


def _application(function_name, name, model_class, sizes, title, url):
    parameters = inspect.signature(model_class.__init__).parameters
    public = [p for key, p in parameters.items() if key not in ("self", *sizes)]
    weights = inspect.Parameter("weights", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    signature = inspect.Signature([*public[:2], weights, *public[2:]])

    def build(*args, **kwargs):
        arguments = signature.bind(*args, **kwargs).arguments
        weights = arguments.pop("weights", None)
        if weights is None:
            return create_model(name, **arguments)
        zoo.resolve(name, weights)  # a wrong name or a failed download is told before a large model is built
        published = zoo.find(name, os.fspath(weights))
        if published is not None:
            arguments.setdefault("classes", published.classes)
            if published.pool_padding is not None:
                arguments.setdefault("pool_padding", published.pool_padding)
        model = create_model(name, **arguments)
        zoo.load_weights(model, name, weights)
        return model

    build.__name__ = build.__qualname__ = function_name
    build.__module__ = __name__
    build.__signature__ = signature
    build.__doc__ = _DOCSTRING.format(name=name, model_class=model_class.__name__, title=title, url=url)
    return build


_VIT_SIZES = ("patch_size", "hidden_size", "num_layers", "num_heads", "mlp_dim", "resnet_blocks")
_BIT_SIZES = ("block_sizes", "width_factor")
_VIT_PAPER = (
    "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
    "https://arxiv.org/abs/2010.11929",
)
_BIT_PAPER = "Big Transfer (BiT): General Visual Representation Learning", "https://arxiv.org/abs/1912.11370"


def _vit(name):
    return _application(constructor_name(name), name, VisionTransformer, _VIT_SIZES, *_VIT_PAPER)


def _bit(name):
    return _application(constructor_name(name), name, BiTResNet, _BIT_SIZES, *_BIT_PAPER)


ViT_Ti16 = _vit("ViT-Ti/16")
ViT_S16 = _vit("ViT-S/16")
ViT_S32 = _vit("ViT-S/32")
ViT_B8 = _vit("ViT-B/8")
ViT_B16 = _vit("ViT-B/16")
ViT_B32 = _vit("ViT-B/32")
ViT_L16 = _vit("ViT-L/16")
ViT_L32 = _vit("ViT-L/32")
ViT_H14 = _vit("ViT-H/14")
ViT_g14 = _vit("ViT-g/14")
ViT_G14 = _vit("ViT-G/14")
R_Ti16 = _vit("R+ViT-Ti/16")
R26_S32 = _vit("R26+ViT-S/32")
R26_B32 = _vit("R26+ViT-B/32")
R50_B16 = _vit("R50+ViT-B/16")
R50_L32 = _vit("R50+ViT-L/32")
BiT_R50x1 = _bit("BiT-R50x1")
BiT_R50x3 = _bit("BiT-R50x3")
BiT_R101x1 = _bit("BiT-R101x1")
BiT_R101x3 = _bit("BiT-R101x3")
BiT_R152x2 = _bit("BiT-R152x2")
BiT_R152x4 = _bit("BiT-R152x4")

__all__ = [name for name, value in list(globals().items()) if hasattr(value, "__signature__")]
