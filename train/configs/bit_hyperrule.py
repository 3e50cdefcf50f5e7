"""Fine-tuning of a published BiT with BiT-HyperRule, which chooses all settings by the data set.

Paper: "Big Transfer (BiT)", https://arxiv.org/abs/1912.11370, section 3.3

    keras-vit train --config=bit_hyperrule:BiT_R50x1,cifar10 --workdir=runs/cifar10 \
        --config.model.weights=BiT-M-R50x1.npz
    keras-vit train --config=bit_hyperrule:BiT_R50x1,folder:/images --workdir=runs/images

Data sets: cifar10, cifar100, imagenet2012, pets, flowers, or any source of `keras_vit.data`.
The rule: small images are trained at 128 pixels, larger images at 480. Training takes 500, 10,000 or 20,000 steps,
depending on the number of examples. With 20,000 examples or more, mixup of 0.1 is used. For a source of
`keras_vit.data`, the rule uses the number of examples and the size of the first image in the source.
Images are flipped at random, as in the published PyTorch code. The published TensorFlow code flips every image.
Published, R50x1-M: CIFAR-10 97.2%, CIFAR-100 86.5%, ImageNet 80.68%. Not run here.
Cost: 0.026 TPUv3-core-days for R50x1 on CIFAR-10 by `keras-vit plan`.
Smaller machines: the authors suggest a batch of 128 with a learning rate of 0.001.
`--config.optim.accumulation_steps=16` saves memory with the original batch and learning rate.
"""

from keras_vit import data, models, recipe

from . import common

# Source, training split, evaluation split, training examples, image size.
DATA = {
    "cifar10": ("tfds:cifar10", "train", "test", 50_000, 32),
    "cifar100": ("tfds:cifar100", "train", "test", 50_000, 32),
    "imagenet2012": ("tfds:imagenet2012", "train", "validation", 1_281_167, 400),
    "pets": ("tfds:oxford_iiit_pet", "train", "test", 3_680, 400),
    "flowers": ("tfds:oxford_flowers102", "train+validation", "test", 2_040, 500),
}


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The arguments are the variant and the data set."""
    variant, dataset = common.arguments(arguments, "BiT_R50x1", "cifar10")
    variant = common.variant(variant, models.BIT)
    if dataset in DATA:
        source, train_split, eval_split, num_examples, side = DATA[dataset]
        height = width = side
    else:
        source, train_split, eval_split = dataset, "train", "test"
        opened = data.open_source(source, split=train_split)
        num_examples, (height, width) = opened.num_examples, common.first_image_size(opened)
    rule = common.hyperrule(num_examples, height, width)
    return recipe.Recipe(
        total_steps=rule.supports[-1],
        precision="mixed_bfloat16",
        deterministic=False,
        log_every=50,
        eval_every=0 if rule.supports[-1] <= 500 else 1_000,
        checkpoint_every=500,
        model=common.published_model(variant, image_size=rule.crop),
        data=recipe.Data(
            source=source,
            train_split=train_split,
            eval_split=eval_split,
            pp_train=f"decode|resize({rule.resize}, cast=False)|random_crop({rule.crop})|flip_lr|value_range(-1, 1)",
            pp_eval=f"decode|resize({rule.crop}, cast=False)|value_range(-1, 1)",
            batch_size=512,
            mixup=rule.mixup,
            shuffle_buffer=40_000,
        ),
        optim=recipe.Optim(
            "sgd",
            learning_rate=0.003,
            schedule=rule.schedule(),
            momentum=0.9,
            weight_decay=0.0,
            clip_norm=0.0,
        ),
    )
