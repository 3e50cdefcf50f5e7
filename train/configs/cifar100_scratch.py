"""A small ViT on CIFAR-100 from scratch: the recipe of `cifar10_scratch` with more stochastic depth.

Papers: the model is a ViT with patches of 4 pixels; the settings follow "How to train your ViT?",
https://arxiv.org/abs/2106.10270, with mixup and CutMix as in DeiT, https://arxiv.org/abs/2012.12877

    keras-vit train --config=cifar100_scratch --workdir=runs/cifar100

Published: nothing for these settings. Not run here.
Cost: 0.016 TPUv3-core-days by `keras-vit plan`; days on a CPU.
Smaller machines: `--steps=4883 --config.model.arguments.num_layers=6` takes a quarter of the 19,531 steps.
On two cores, train `fashion_mnist` or `digits` instead.
"""

from keras_vit import recipe

from . import cifar10_scratch


def get_config() -> recipe.Recipe:
    """Return the recipe."""
    config = cifar10_scratch.get_config()
    config.data.source = "tfds:cifar100"
    config.model.arguments["drop_path_rate"] = 0.2
    return config
