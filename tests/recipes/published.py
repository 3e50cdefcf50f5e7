"""The numbers of the published configurations, one table, written down from their sources and not from the recipes.

Sources:
    vit_jax: google-research/vision_transformer, `vit_jax/configs`
    big_vision: google-research/big_vision, `big_vision/configs`
    big_transfer: google-research/big_transfer, `bit_hyperrule.py` and `bit_common.py`
    task_adaptation: google-research/task_adaptation, `scripts/run_all_tasks.sh` and `trainer.py`
    paper: "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929, tables 3 and 4, and its authors' answers
        in vision_transformer issue 2
    BiT: "Big Transfer", https://arxiv.org/abs/1912.11370, section 3.3 and appendix F
"""

IMAGENET = {"data.source": "tfds:imagenet2012", "data.train_split": "train[:99%]", "data.eval_split": "validation"}
IMAGENET_21K = {
    "data.source": "tfds:imagenet21k",
    "data.train_split": "full[51200:]",
    "data.eval_split": "full[:25600]",
}
INCEPTION = "decode_jpeg_and_inception_crop(224)|flip_lr|value_range(-1, 1)"
PP_EVAL = "decode|resize_small(256)|central_crop(224)|value_range(-1, 1)"

BIG_VISION = {
    "data.pp_eval": PP_EVAL,
    "data.shuffle_buffer": 250_000,
    "data.cutmix": 0.0,
    "checkpoint_every": 1_000,
    "log_every": 50,
    "label_smoothing": 0.0,
    "optim.clip_norm": 1.0,
    "optim.momentum_dtype": "bfloat16",
    "optim.weight_decay_mask": "kernel$",
    "optim.schedule.name": "cosine",
    "optim.schedule.end": 0.0,
    "optim.accumulation_steps": 1,
    "optim.ema": 0.0,
}
# big_vision subtracts `schedule * 1e-4 * weight` a step, whatever the rate.
BIG_VISION_ADAM = BIG_VISION | {
    "optim.name": "adamw",
    "optim.learning_rate": 1e-3,
    "decay a step": 1e-4,
    "optim.beta1": 0.9,
    "optim.beta2": 0.999,
    "optim.epsilon": 1e-8,
    "optim.schedule.warmup_steps": 10_000,
}
VIT_S16 = (
    BIG_VISION_ADAM
    | IMAGENET
    | {
        "model.variant": "ViT-S/16",
        "model.image_size": 224,
        "model.pooling": "gap",
        "model.position_embedding": "sincos2d",
        "model.representation_size": 384,
        "data.batch_size": 1_024,
        "data.mixup": 0.2,
        "data.pp_train": "decode_jpeg_and_inception_crop(224)|flip_lr|randaug(2, 10)|value_range(-1, 1)",
        "loss": "softmax",
    }
)
AUGREG_I1K = (
    BIG_VISION_ADAM
    | IMAGENET
    | {
        "total_steps": 92_897,  # 300 epochs of 1,268,355
        "model.image_size": 224,
        "model.pooling": "token",
        "model.head_bias": -6.9,
        "data.batch_size": 4_096,
        "loss": "sigmoid",
    }
)
AUGREG_I21K = (
    BIG_VISION_ADAM
    | IMAGENET_21K
    | {
        "total_steps": 1_036_078,  # 300 epochs of 14,145,922
        "model.image_size": 224,
        "model.pooling": "gap",
        "model.position_embedding": "learned",
        "model.head_bias": -10.0,
        "data.batch_size": 4_096,
        "loss": "sigmoid",
    }
)
BIT = BIG_VISION | {
    "model.image_size": 224,
    "data.batch_size": 4_096,
    "data.pp_train": INCEPTION,
    "data.mixup": 0.0,
    "optim.name": "sgd",
    "optim.momentum": 0.9,
    "optim.nesterov": False,
}
PAPER = {
    "data.batch_size": 4_096,
    "data.mixup": 0.0,
    "data.pp_train": INCEPTION,
    "data.pp_eval": PP_EVAL,
    "model.image_size": 224,
    "optim.name": "adam",
    "optim.beta1": 0.9,
    "optim.beta2": 0.999,
    "optim.schedule.warmup_steps": 10_000,
    "optim.weight_decay_mask": "kernel$",
    "optim.ema": 0.0,
}
PAPER_21K = (
    PAPER
    | IMAGENET_21K
    | {
        "total_steps": 310_823,  # 90 epochs of 14,145,922
        "model.pooling": "token",
        "model.dropout_rate": 0.1,
        "model.head_bias": -10.0,
        "optim.learning_rate": 1e-3,
        "optim.weight_decay": 0.03,
        "optim.schedule.name": "linear",
        "optim.schedule.end": 1e-5,
        "optim.clip_norm": 0.0,
        "loss": "sigmoid",
    }
)
PAPER_I1K = (
    PAPER
    | IMAGENET
    | {
        "total_steps": 92_897,
        "model.pooling": "token",
        "model.dropout_rate": 0.1,
        "optim.learning_rate": 3e-3,
        "optim.weight_decay": 0.3,
        "optim.schedule.name": "cosine",
        "optim.schedule.end": 0.0,
        "optim.clip_norm": 1.0,
    }
)
PAPER_JFT = PAPER | {
    "total_steps": 517_822,  # 7 epochs of 303 million
    "model.head_bias": -10.0,
    "optim.weight_decay": 0.1,
    "optim.schedule.name": "linear",
    "optim.schedule.end": 1e-5,
    "optim.clip_norm": 0.0,
    "loss": "sigmoid",
}
FINETUNE = {
    "model.image_size": 384,
    "model.dropout_rate": 0.0,
    "model.head": "reset",
    "data.pp_train": "decode|inception_crop(384, cast=False)|flip_lr|value_range(-1, 1)",
    "data.pp_eval": "decode|resize(384, cast=False)|value_range(-1, 1)",
    "data.batch_size": 512,
    "data.eval_batch_size": 512,
    "data.mixup": 0.0,
    "data.shuffle_buffer": 50_000,
    "log_every": 10,
    "checkpoint_every": 1_000,
    "loss": "softmax",
    "optim.name": "sgd",
    "optim.momentum": 0.9,
    "optim.nesterov": False,
    "optim.momentum_dtype": "bfloat16",
    "optim.weight_decay": 0.0,
    "optim.clip_norm": 1.0,
    "optim.accumulation_steps": 8,
    "optim.schedule.name": "cosine",
    "optim.schedule.end": 0.0,
    "optim.schedule.warmup_steps": 500,
    "optim.ema": 0.0,
}
CIFAR = {"total_steps": 10_000, "data.train_split": "train[:98%]", "data.eval_split": "test"}
SHORT = {"total_steps": 500, "optim.schedule.warmup_steps": 100, "optim.learning_rate": 0.03, "data.eval_split": "test"}
TRANSFER = {
    "model.image_size": 384,
    "model.head": "reset",
    "data.pp_train": "decode|resize_small(448)|random_crop(384)|flip_lr|value_range(-1, 1)",
    "data.pp_eval": "decode|resize_small(448)|central_crop(384)|value_range(-1, 1)",
    "data.batch_size": 512,
    "data.mixup": 0.0,
    "data.shuffle_buffer": 50_000,
    "checkpoint_every": 1_000,
    "log_every": 50,
    "loss": "softmax",
    "optim.name": "sgd",
    "optim.momentum": 0.9,
    "optim.nesterov": False,
    "optim.momentum_dtype": "bfloat16",
    "optim.weight_decay": 0.0,
    "optim.clip_norm": 1.0,
    "optim.schedule.name": "cosine",
    "optim.schedule.end": 0.0,
}
HYPERRULE = {
    "data.batch_size": 512,
    "loss": "softmax",
    "model.head": "reset",
    "optim.name": "sgd",
    "optim.learning_rate": 0.003,
    "optim.momentum": 0.9,
    "optim.nesterov": False,
    "optim.weight_decay": 0.0,
    "optim.clip_norm": 0.0,
    "optim.schedule.name": "steps",
    "optim.schedule.factor": 0.1,
}

EXPECTED = {
    # big_vision, vit_s16_i1k.py
    ("vit_s16_i1k", ""): VIT_S16 | {"total_steps": 111_477},
    ("vit_s16_i1k", "150"): VIT_S16 | {"total_steps": 185_794},
    ("vit_s16_i1k", "300"): VIT_S16 | {"total_steps": 371_588},
    # big_vision, vit_i1k.py and vit_i21k.py; the augmentation of each size is tested below
    ("vit_i1k", ""): AUGREG_I1K
    | {
        "model.variant": "ViT-B/16",
        "model.representation_size": 768,
        "data.pp_train": "decode_jpeg_and_inception_crop(224)|flip_lr|randaug(2, 15)|value_range(-1, 1)",
    },
    ("vit_i1k", "ViT_Ti16"): AUGREG_I1K | {"model.representation_size": 192},
    ("vit_i21k", ""): AUGREG_I21K
    | {
        "model.variant": "ViT-B/16",
        "model.representation_size": None,
        "data.pp_train": "decode_jpeg_and_inception_crop(224)|flip_lr|randaug(2, 10)|value_range(-1, 1)",
    },
    ("vit_i21k", "ViT_S32"): AUGREG_I21K | {"data.pp_train": INCEPTION},
    # big_vision, bit_i1k.py and bit_i21k.py: rate and decay are per 256 examples
    ("bit_i1k", ""): BIT
    | IMAGENET
    | {
        "model.variant": "BiT-R50x1",
        "total_steps": 27_869,  # 90 epochs
        "optim.learning_rate": 0.1 / 256 * 4_096,
        "decay a step": 1e-4 / 256 * 4_096,
        "optim.schedule.warmup_steps": 1_000,
        "loss": "softmax",
    },
    ("bit_i21k", ""): BIT
    | IMAGENET_21K
    | {
        "model.variant": "BiT-R50x1",
        "total_steps": 310_823,
        "optim.learning_rate": 0.03 / 256 * 4_096,
        "decay a step": 3e-5 / 256 * 4_096,
        "optim.schedule.warmup_steps": 5_000,
        "model.head_bias": -10.0,
        "loss": "sigmoid",
    },
    # paper, table 3
    ("vit_paper", ""): PAPER_21K | {"model.representation_size": 768},
    ("vit_paper", "ViT_L16,imagenet21k"): PAPER_21K | {"model.representation_size": 1_024},
    ("vit_paper", "ViT_B32,imagenet2012"): PAPER_I1K,
    ("vit_paper", "ViT_L16,imagenet2012"): PAPER_I1K,
    **{
        ("vit_paper", f"{variant},jft"): PAPER_JFT | {"optim.learning_rate": rate} | changes
        for variant, rate, changes in (
            ("ViT_B16", 8e-4, {"model.dropout_rate": 0.0, "model.representation_size": 768}),
            ("ViT_B32", 8e-4, {"model.dropout_rate": 0.0}),
            ("ViT_L32", 6e-4, {"model.dropout_rate": 0.0}),
            ("ViT_L16", 4e-4, {"model.dropout_rate": 0.0}),
            ("ViT_H14", 3e-4, {"model.dropout_rate": 0.0, "total_steps": 1_035_645}),  # 14 epochs
            ("BiT_R50x1", 1e-3, {}),
            ("BiT_R101x1", 8e-4, {}),
            ("BiT_R152x2", 6e-4, {}),
            ("R50_B16", 8e-4, {"model.dropout_rate": 0.0}),
            ("R50_L32", 2e-4, {"model.dropout_rate": 0.0}),
        )
    },
    # vit_jax, common.py and vit.py; paper, table 4 and sections 4.1 and B.1.1
    ("finetune", ""): FINETUNE | CIFAR | {"data.source": "tfds:cifar10", "optim.learning_rate": 0.01},
    ("finetune", "ViT_B32,cifar10"): FINETUNE | CIFAR | {"data.source": "tfds:cifar10", "optim.learning_rate": 0.03},
    ("finetune", "ViT_B16,cifar100"): FINETUNE | CIFAR | {"data.source": "tfds:cifar100", "optim.learning_rate": 0.03},
    ("finetune", "ViT_B16,imagenet2012"): FINETUNE | IMAGENET | {"total_steps": 20_000, "optim.learning_rate": 0.03},
    ("finetune", "ViT_B16,pets"): FINETUNE
    | SHORT
    | {"data.source": "tfds:oxford_iiit_pet", "data.train_split": "train"},
    ("finetune", "ViT_B16,flowers"): FINETUNE
    | SHORT
    | {"data.source": "tfds:oxford_flowers102", "data.train_split": "train+validation"},
    ("finetune", "R50_B16,cifar10"): FINETUNE | CIFAR | {"model.dropout_rate": 0.1, "optim.learning_rate": 0.03},
    ("finetune", "ViT_L16,cifar10"): FINETUNE | CIFAR | {"model.dropout_rate": 0.1, "optim.learning_rate": 0.03},
    **{
        ("finetune", f"{variant},imagenet2012"): FINETUNE
        | IMAGENET
        | {
            "total_steps": 20_000,
            "optim.learning_rate": 0.03,
            "optim.ema": 0.9999,
            "model.dropout_rate": 0.1,
            "model.image_size": size,
            "data.pp_train": f"decode|inception_crop({size}, cast=False)|flip_lr|value_range(-1, 1)",
            "data.pp_eval": f"decode|resize({size}, cast=False)|value_range(-1, 1)",
        }
        for variant, size in (("ViT_L16", 512), ("ViT_H14", 518))
    },
    ("finetune", "ViT_B16,vtab:svhn"): FINETUNE
    | {
        "total_steps": 2_500,
        "optim.learning_rate": 0.01,
        "data.source": "vtab:svhn",
        "data.train_split": "train800val200",
        "data.eval_split": "test",
        "data.pp_train": "decode|resize(448, cast=False)|random_crop(384)|flip_lr|value_range(-1, 1)",
    },
    # big_vision, transfer.py; the rates are those of its published results
    **{
        ("augreg_transfer", f"ViT_B32,{dataset}"): TRANSFER
        | {
            "data.source": source,
            "data.train_split": train,
            "data.eval_split": test,
            "total_steps": steps,
            "optim.schedule.warmup_steps": warmup,
            "optim.learning_rate": rate,
        }
        for dataset, source, train, test, steps, warmup, rate in (
            ("imagenet2012", "tfds:imagenet2012", "train[:99%]", "validation", 20_000, 500, 0.03),
            ("cifar10", "tfds:cifar10", "train[:98%]", "test", 10_000, 500, 0.003),
            ("cifar100", "tfds:cifar100", "train[:98%]", "test", 10_000, 500, 0.01),
            ("pets", "tfds:oxford_iiit_pet", "train[:90%]", "test", 500, 100, 0.003),
            ("flowers", "tfds:oxford_flowers102", "train[:90%]", "test", 500, 100, 0.003),
        )
    },
    ("augreg_transfer", "ViT_B32,cifar10,inception"): {
        "data.pp_train": "decode|inception_crop(384)|flip_lr|value_range(-1, 1)"
    },
    ("augreg_transfer", "ViT_B32,cifar10,resize"): {
        "data.pp_train": "decode|resize(448)|random_crop(384)|flip_lr|value_range(-1, 1)"
    },
    # big_transfer: small images, and a small and a large data set of large ones
    ("bit_hyperrule", ""): HYPERRULE
    | {
        "data.source": "tfds:cifar10",
        "total_steps": 10_000,
        "model.image_size": 128,
        "data.mixup": 0.1,
        "optim.schedule.warmup_steps": 500,
        "data.pp_train": "decode|resize(160, cast=False)|random_crop(128)|flip_lr|value_range(-1, 1)",
        "data.pp_eval": "decode|resize(128, cast=False)|value_range(-1, 1)",
    },
    ("bit_hyperrule", "BiT_R50x1,pets"): HYPERRULE
    | {
        "total_steps": 500,
        "model.image_size": 480,
        "data.mixup": 0.0,
        "optim.schedule.warmup_steps": 100,
        "data.pp_train": "decode|resize(512, cast=False)|random_crop(480)|flip_lr|value_range(-1, 1)",
        "data.pp_eval": "decode|resize(480, cast=False)|value_range(-1, 1)",
    },
    ("bit_hyperrule", "BiT_R50x1,imagenet2012"): HYPERRULE
    | {"total_steps": 20_000, "model.image_size": 480, "data.mixup": 0.1, "optim.schedule.warmup_steps": 500},
    # task_adaptation
    ("vtab", ""): {
        "total_steps": 1_000,
        "data.source": "vtab:svhn",
        "data.train_split": "train800val200",
        "data.eval_split": "test",
        "data.batch_size": 64,
        "data.mixup": 0.0,
        "data.pp_train": "decode|resize(224, cast=False)|value_range(-1, 1)",
        "data.pp_eval": "decode|resize(224, cast=False)|value_range(-1, 1)",
        "model.image_size": 224,
        "model.head": "reset",
        "loss": "softmax",
        "optim.name": "sgd",
        "optim.learning_rate": 0.01,
        "optim.momentum": 0.9,
        "optim.nesterov": False,
        "optim.weight_decay": 0.0,
        "optim.clip_norm": 0.0,
        "optim.schedule.name": "steps",
        "optim.schedule.warmup_steps": 80,
        "optim.schedule.factor": 0.1,
    },
}
