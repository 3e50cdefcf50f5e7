"""Names from other tools, and what to type in this package. The errors about unknown names use these tables.

The module imports nothing, so that an error of a flag appears at once.
"""

# A copy of the fields of `keras_vit.recipe.Recipe`, which must not be imported before the flags are parsed.
_GROUPS = {
    "": "seed total_steps time precision deterministic jit task loss label_smoothing adapt class_weight_exponent "
    "head_images steps_per_loop log_every eval_every patience checkpoint_every keep_checkpoints evaluators",
    "model.": "variant image_size weights head remat attention_chunk_size arguments",
    "data.": "source train_split eval_split pp_train pp_eval batch_size eval_batch_size mixup cutmix shuffle_buffer "
    "on_bad_image test_split",
    "optim.": "name learning_rate momentum nesterov beta1 beta2 epsilon momentum_dtype weight_decay weight_decay_mask "
    "clip_norm accumulation_steps layer_decay ema_momentum",
    "optim.schedule.": "name warmup_steps end timescale cooldown_steps boundaries factor",
}
FIELDS = tuple(f"{group}{name}" for group, names in _GROUPS.items() for name in names.split())
BY_LAST_COMPONENT = {field.rpartition(".")[2]: field for field in FIELDS}
# Fields whose flag of `keras-vit train` has another name than the field.
_FLAGS = {"total_steps": "steps", "model.variant": "model", "data.source": "data"}

_RESUME = "The same command with the same --workdir=DIR resumes the run."
_DEVICE = "The environment variable CUDA_VISIBLE_DEVICES=0 selects the first GPU, and CUDA_VISIBLE_DEVICES=-1 the CPU."
_CLASSES = "Leave it out: --data=DATA names the classes, such as by the folders of the images."
_FREEZE = "--adapt=head trains only the head, and --adapt='last(4)' trains also the last four blocks."
_PRECISION = "--config.precision=mixed_bfloat16 computes in bfloat16 and stores float32."
_WEIGHTS = "--weights=NAME sets the initial weights, see `keras-vit models`; --weights=none trains from scratch."

# Settings of training: a field of the recipe, a flag, or a sentence.
SETTINGS = {
    **dict.fromkeys(("epochs", "num_epochs", "max_epochs", "num_train_epochs"), "--epochs"),
    **dict.fromkeys(("steps", "max_steps", "num_steps", "train_steps", "iterations"), "total_steps"),
    **dict.fromkeys(("bs", "batch", "train_batch_size", "per_device_train_batch_size"), "data.batch_size"),
    **dict.fromkeys(("lr", "base_lr", "lr0", "rate"), "optim.learning_rate"),
    **dict.fromkeys(("wd", "decay"), "optim.weight_decay"),
    **dict.fromkeys(("opt", "optimizer"), "optim.name"),
    **dict.fromkeys(("sched", "scheduler", "lr_scheduler"), "optim.schedule.name"),
    "warmup": "optim.schedule.warmup_steps",
    **dict.fromkeys(("clip", "clip_grad", "grad_clip", "max_grad_norm"), "optim.clip_norm"),
    **dict.fromkeys(("accumulate", "grad_accum", "gradient_accumulation_steps"), "optim.accumulation_steps"),
    **dict.fromkeys(("ema", "model_ema", "ema_decay"), "optim.ema_momentum"),
    **dict.fromkeys(("amp", "fp16", "bf16", "half", "mixed_precision"), _PRECISION),
    "smoothing": "label_smoothing",
    "early_stopping": "patience",
    **dict.fromkeys(("class_weight", "class_weights"), "class_weight_exponent"),
    **dict.fromkeys(("random_seed", "manual_seed", "random_state"), "seed"),
    **dict.fromkeys(("imgsz", "img_size", "input_size", "resolution", "crop_size"), "model.image_size"),
    **dict.fromkeys(("arch", "backbone", "model_name"), "model.variant"),
    **dict.fromkeys(("grad_checkpointing", "gradient_checkpointing"), "model.remat"),
    **dict.fromkeys(("dropout", "drop"), "model.arguments.dropout_rate"),
    **dict.fromkeys(("drop_path", "stochastic_depth"), "model.arguments.drop_path_rate"),
    **dict.fromkeys(("data_dir", "data_path", "dataset", "train_dir"), "data.source"),
    **dict.fromkeys(("pretrained", "checkpoint", "ckpt"), _WEIGHTS),
    **dict.fromkeys(("freeze", "frozen", "trainable"), _FREEZE),
    **dict.fromkeys(("lora", "peft"), "Type --adapt=lora."),
    **dict.fromkeys(("output", "output_dir", "out_dir", "save_dir", "project"), "--workdir"),
    **dict.fromkeys(("resume", "resume_from_checkpoint"), _RESUME),
    **dict.fromkeys(("device", "gpu", "gpus", "cpu"), _DEVICE),
    **dict.fromkeys(("num_classes", "classes", "class_names", "names"), _CLASSES),
}

# Commands of `keras-vit`.
COMMANDS = {
    **dict.fromkeys(("fit", "finetune", "fine-tune", "resume"), "train"),
    **dict.fromkeys(("val", "validate", "validation", "test", "eval", "score"), "evaluate"),
    **dict.fromkeys(("infer", "inference", "classify", "detect"), "predict"),
    **dict.fromkeys(("features", "extract", "embeddings", "encode"), "embed"),
    **dict.fromkeys(("search", "retrieve", "neighbors"), "similar"),
    **dict.fromkeys(("info", "list", "weights", "zoo", "download"), "models"),
    **dict.fromkeys(("compare", "results", "history"), "runs"),
    **dict.fromkeys(("tune", "hpo"), "sweep"),
    "convert": "convert-checkpoint",
    "version": "--version",
}

# Attributes of the package.
NAMES = {
    "features": "feature_extractor",
    "load_run": "runs.load_run",
    "load_model": "runs.load_run, keras_vit.open_predictor or keras.models.load_model",
    "load": "runs.load_run, keras_vit.open_predictor or keras.models.load_model",
    "from_pretrained": "create_model(name, weights=...) or keras_vit.model_from_checkpoint",
    "pipeline": "open_predictor",
    "predict": "open_predictor",
    "Predictor": "open_predictor",
    "train": "fine_tune",
    "Trainer": "fine_tune",
    "Recipe": "recipe.Recipe",
}


def fields_like(name: str) -> tuple[list[str], str]:
    """Return the fields of the recipe, or the flag, that a setting may be, by its last component, or a sentence.

    Example:
    >>> fields_like("optim.lr"), fields_like("batch_size")
    ((['optim.learning_rate'], ''), (['data.batch_size'], ''))
    """
    word = name.rpartition(".")[2].lower().replace("-", "_")
    meaning = SETTINGS.get(word, "")
    if " " in meaning:
        return [], meaning
    return [meaning] if meaning else [field for field in FIELDS if field.rpartition(".")[2] == word], ""


def flag_of(field: str) -> str:
    """Return the name of the flag of `keras-vit train` for a field of the recipe, if there is one."""
    return _FLAGS.get(field, field.rpartition(".")[2].lstrip("-"))
