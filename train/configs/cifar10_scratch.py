"""A small ViT on CIFAR-10 from scratch, on one GPU, or within days on a CPU: `fashion_mnist_hour` with a larger model.

Papers: the model is a ViT with patches of 4 pixels; the augmentation follows "How to train your ViT?",
https://arxiv.org/abs/2106.10270, with mixup and CutMix as in DeiT, https://arxiv.org/abs/2012.12877. The optimizer,
learning rate, weight decay, moving average and position embeddings are the same as in `fashion_mnist_hour:vit`.
Stochastic depth is added because training takes 200 epochs instead of 34.

    keras-vit train --config=cifar10_scratch --workdir=runs/cifar10

Published: nothing for these settings. Reported accuracies of small ViTs from scratch are usually 90 to 95%. Not run
here.
Cost: 0.016 TPUv3-core-days by `keras-vit plan`; days on a CPU.
Smaller machines: `--steps=4883 --config.model.arguments.num_layers=6` takes a quarter of the 19,531 steps
and six of the eight layers. On two cores, train `fashion_mnist` or `digits` instead.
"""

from keras_vit import recipe

from . import common, fashion_mnist_hour

AUGMENTATION = "pad(4)|random_crop(32)|flip_lr|randaug(2, 9, mode='corrected')|random_erasing(0.25)"


def get_config() -> recipe.Recipe:
    """Return the recipe."""
    config = fashion_mnist_hour.get_config("vit")
    config.total_steps = common.steps(200, 50_000, 512)
    config.deterministic = False
    config.log_every, config.eval_every, config.checkpoint_every = 50, 1_000, 1_000
    config.evaluators = ("knn", "fewshot(shots=(10,))")
    config.model.image_size = 32
    config.model.arguments |= {"hidden_size": 256, "num_layers": 8, "mlp_dim": 1_024, "drop_path_rate": 0.1}
    config.data = recipe.Data(
        source="tfds:cifar10",
        train_split="train",
        eval_split="test",
        pp_train=f"decode|{AUGMENTATION}|value_range(-1, 1)",
        pp_eval="decode|resize(32)|value_range(-1, 1)",
        batch_size=512,
        mixup=0.2,
        cutmix=1.0,
    )
    config.optim.schedule.warmup_steps = 1_000
    return config
