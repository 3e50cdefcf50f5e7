"""Recipes are strict in names, types and ranges, and unchanged after a round trip through JSON."""

import json

import pytest

from keras_vit import recipe as recipes
from keras_vit.models import BiTConfig, ViTConfig
from keras_vit.recipe.fields import ARGUMENT_FIELDS
from keras_vit.recipe.model import DERIVED
from tests import tiny


def test_round_trip_through_json():
    recipe = recipes.Recipe(
        model=recipes.Model(arguments={"resnet_blocks": (2, 3), "patch_size": 4}),
        optim=recipes.Optim(schedule=recipes.Schedule("steps", boundaries=(1, 2))),
    )
    assert recipes.from_dict(json.loads(json.dumps(recipes.to_dict(recipe)))) == recipe


def test_missing_fields_keep_their_defaults():
    recipe = recipes.from_dict({"seed": 3, "optim": {"learning_rate": 1}})
    assert recipe == recipes.Recipe(seed=3, optim=recipes.Optim(learning_rate=1.0))
    assert isinstance(recipe.optim.learning_rate, float)
    assert recipes.from_dict({"seed": 3, "optim": {"learning_rate": 1, "frozen": ""}}) == recipe


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optim": {"learnin_rate": 1.0}}, "no field optim.learnin_rate. Did you mean 'optim.learning_rate'?"),
        ({"modle": {}}, "no field modle. Did you mean 'model'?"),
        ({"optim": {"schedule": {"warmup": 3}}}, "Did you mean 'optim.schedule.warmup_steps'?"),
        ({"optim": {"lr": 1.0}}, "Did you mean 'optim.learning_rate'?"),
        ({"optim": {"ems": 1.0}}, "no field optim.ems. Known fields"),  # too short to be compared
        ({"batch_size": 8}, "Did you mean 'data.batch_size'?"),
        ({"learning_rat": 8}, "Did you mean 'optim.learning_rate'?"),
        ({"name": "sgd"}, "Did you mean 'optim.name' or 'optim.schedule.name'?"),
        ({"epochs": 8}, "Did you mean '--epochs'?"),
        ({"freeze": 8}, "--adapt=head trains only the head"),
        ({"pooling": "gap"}, "Did you mean 'model.arguments.pooling'?"),
        ({"seed": "zero"}, "seed must be of type int. Received: seed='zero', of type str"),
        ({"seed": True}, "seed must be of type int"),
        ({"total_steps": 1.5}, "total_steps must be of type int"),
        ({"total_steps": float("inf")}, "total_steps must be of type int. Received: total_steps=inf"),
        ({"total_steps": float("nan")}, "total_steps must be of type int. Received: total_steps=nan"),
        ({"deterministic": 1}, "deterministic must be of type bool"),
        ({"optim": {"frozen": "head"}}, "no field optim.frozen"),  # an earlier field: files with an empty text are read
        ({"model": 3}, "model must be a dictionary of fields. Received: 3"),
        ({"model": {"arguments": {"resnet_blocks": ("a",)}}}, "resnet_blocks"),
        ({"model": {"arguments": {"layer_scal": 1e-4}}}, "Did you mean 'layer_scale'?"),
        ({"model": {"arguments": {"width_factor": 2}}}, "'width_factor'"),  # of a BiT
        ({"model": {"arguments": {"image_size": 32}}}, "model.image_size"),
        ({"model": {"arguments": {"classes": 3}}}, "model.arguments.classes"),
        ({"model": {"arguments": {"pooling": "sum"}}}, "pooling='sum'"),
        ({"model": {"arguments": {"hidden_size": 31}}}, "hidden_size=31"),
        ({"model": {"image_size": 30}}, "image_size"),
        ({"model": {"variant": "ViT-S"}}, "'ViT-S'"),
        ({"model": {"hidden_siz": 8}}, "no field model.hidden_siz"),
        ({"model": {"head": "drop"}}, "model.head must be one of 'auto', 'keep', 'reset'. Received: model.head='drop'"),
        ({"total_steps": 0}, "total_steps must be at least 1. Received: total_steps=0"),
        (
            {"data": {"batch_size": 33}, "optim": {"accumulation_steps": 4}},
            "data.batch_size must be a multiple of optim.accumulation_steps=4.*nearest valid size is 32",
        ),
    ],
)
def test_wrong_fields_are_reported(values, message):
    with pytest.raises(ValueError, match=message):
        recipes.from_dict(values)


SMALLEST = {
    **dict.fromkeys(("total_steps", "steps_per_loop", "keep_checkpoints", "optim.accumulation_steps"), 1),
    **dict.fromkeys(("data.batch_size", "data.eval_batch_size"), 1),
    **dict.fromkeys(("time", "log_every", "eval_every", "patience", "checkpoint_every", "data.mixup"), 0),
    **dict.fromkeys(
        ("head_images", "label_smoothing", "class_weight_exponent", "data.cutmix", "optim.learning_rate"), 0
    ),
    **dict.fromkeys(("optim.weight_decay", "optim.clip_norm", "optim.schedule.warmup_steps"), 0),
}


@pytest.mark.parametrize("path", SMALLEST)
def test_values_below_the_smallest_are_refused(path):
    smallest = SMALLEST[path]
    assert recipes.get(recipes.check(recipes.replace(recipes.Recipe(), {path: smallest})), path) == smallest
    with pytest.raises(ValueError, match=f"{path} must be at least {smallest}. Received: {path}={smallest - 1}"):
        recipes.check(recipes.replace(recipes.Recipe(), {path: smallest - 1}))


def test_a_fitted_head_needs_no_steps():
    recipes.check(recipes.Recipe(total_steps=0, head_images=1))


CHOICES = {
    "precision": ("float32", "mixed_bfloat16", "bfloat16"),
    "jit": ("auto", "on", "off"),
    "loss": ("softmax", "sigmoid"),
    "model.head": ("auto", "keep", "reset"),
    "model.remat": (None, "none", "blocks"),
    "data.on_bad_image": ("error", "skip"),
    "optim.name": ("sgd", "lars", "muon", "adamw"),
    "optim.momentum_dtype": ("float32", "bfloat16"),
    "optim.schedule.name": ("cosine", "linear", "rsqrt", "steps"),
}


@pytest.mark.parametrize("path", CHOICES)
def test_values_other_than_the_choices_are_refused(path):
    for value in CHOICES[path]:
        assert recipes.get(recipes.check(recipes.replace(recipes.Recipe(), {path: value})), path) == value
    with pytest.raises(ValueError, match=f"{path} must be one of .*'{CHOICES[path][-1]}'.*Received: {path}='other'"):
        recipes.check(recipes.replace(recipes.Recipe(), {path: "other"}))


@pytest.mark.parametrize(
    ("task", "fields", "named"),
    [
        ("distillation('a')", {"loss": "sigmoid"}, "loss='sigmoid'"),
        ("distillation('a')", {"label_smoothing": 0.1}, "label_smoothing=0.1"),
        ("segmentation", {"loss": "sigmoid"}, "loss='sigmoid'"),
        ("segmentation", {"data.cutmix": 0.1}, "data.cutmix=0.1"),
        ("segmentation", {"data.mixup": 0.1}, "data.mixup=0.1"),
        ("regression", {"label_smoothing": 0.1}, "label_smoothing=0.1"),
        ("classification", {"loss": "sigmoid", "class_weight_exponent": 0.5}, "class_weight_exponent=0.5"),
        ("distillation('a')", {"class_weight_exponent": 0.5}, "class_weight_exponent=0.5"),
    ],
)
def test_fields_that_a_task_does_not_support_are_refused(task, fields, named):
    recipe = recipes.Recipe(task=task)
    recipes.check(recipe)
    with pytest.raises(ValueError, match=f"Received: .*{named}"):
        recipes.check(recipes.replace(recipe, fields))


def test_fields_are_found_by_path():
    assert recipes.get(recipes.Recipe(), "optim.schedule.name") == "cosine"
    with pytest.raises(ValueError, match="no field optim.schedule.nmae. Did you mean 'optim.schedule.name'"):
        recipes.get(recipes.Recipe(), "optim.schedule.nmae")
    with pytest.raises(ValueError, match="no field seed.x. seed has no fields of its own"):
        recipes.get(recipes.Recipe(), "seed.x")


@pytest.mark.parametrize(
    ("task", "shown"),
    [
        ("classification", ["0.5 nats", "50.00%"]),
        ("distillation('a')", ["0.5 nats", "50.00%"]),
        ("regression", ["0.5", "0.5", "0.5"]),
        ("multi_label", ["0.5 nats", "50.00%"]),
        ("segmentation", ["0.5 nats", "50.00%", "50.00%"]),
        ("masked_patch", ["0.5", "50.00%"]),
        ("mae", ["0.5", "50.00%"]),
    ],
)
def test_metrics_have_units_and_directions(task, shown):
    """The loss and the errors of a regression are better if they are smaller."""
    metrics = recipes.parse_task(task).metrics
    assert [metric.text(0.5) for metric in metrics] == shown
    smaller = 3 if task == "regression" else 1
    assert [metric.larger_is_better for metric in metrics] == [False] * smaller + [True] * (len(metrics) - smaller)


def test_nearest_multiple_rounds_half_up():
    assert [recipes.nearest_multiple(n, 8) for n in (1, 11, 13, 16)] == [8, 8, 16, 16]


def test_every_argument_of_the_model_can_be_set():
    for config, variant in ((ViTConfig, "ViT-Ti/16"), (BiTConfig, "BiT-R50x1")):
        for name in set(config.names()) - set(ARGUMENT_FIELDS) - set(DERIVED):
            assert recipes.get(recipes.Recipe(model=recipes.Model(variant)), f"model.arguments.{name}") is None
    recipe = recipes.Recipe()
    for name, text in {"layer_scale": "1e-4", "qkv_bias": "False", "pooling": "gap", "num_registers": "2"}.items():
        recipe = recipes.override(recipe, f"model.arguments.{name}", text)
    expected = {"layer_scale": 1e-4, "qkv_bias": False, "pooling": "gap", "num_registers": 2}
    assert recipes.check(recipe).model.arguments == expected
    assert recipes.get(recipe, "model.arguments.layer_scale") == 1e-4
    with pytest.raises(ValueError, match="model.arguments.layer_scale"):
        recipes.override(recipe, "model.layer_scale", "1e-4")
    with pytest.raises(ValueError, match="'layer_scale'"):
        recipes.override(recipe, "model.arguments.layerscale", "1e-4")


def test_a_task_is_parsed_where_it_enters():
    parsed = recipes.MAE(mask_ratio=0.5)
    recipe = recipes.Recipe(task="mae(mask_ratio=0.5, decoder_num_layers=8)")
    assert recipe.task == parsed == recipes.from_dict({"task": "mae(0.5)"}).task
    assert recipes.override(recipes.Recipe(), "task", "mae(mask_ratio=0.5)").task == parsed
    recipe.task = "distillation('runs/bit', temperature=2)"
    assert recipe.task == recipes.Distillation("runs/bit", 2.0)
    assert recipes.Recipe().task == recipes.Recipe(task=recipes.Classification()).task == recipes.Classification()
    for wrong in ("mea", "mae(mask_ratoi=0.5)", 3):
        with pytest.raises(ValueError, match="mae"):
            recipes.Recipe(task=wrong)
    with pytest.raises(ValueError, match="no field task.mask_ratio"):
        recipes.override(recipes.Recipe(task="mae"), "task.mask_ratio", "0.5")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("classification()", "classification"),
        ("mae(normalize_pixels=True)", "mae"),
        ("mae(normalize_pixels=0, mask_ratio=0.5)", "mae(mask_ratio=0.5, normalize_pixels=False)"),
        ("masked_patch(0.5, 'pixels')", "masked_patch(target='pixels')"),
        ("distillation('a', temperature=2)", "distillation(teacher='a', temperature=2.0)"),
    ],
)
def test_json_contains_the_canonical_text_of_a_task(text, canonical):
    recipe = recipes.Recipe(task=text)
    assert json.loads(json.dumps(recipes.to_dict(recipe)))["task"] == canonical
    assert recipes.from_dict({"task": canonical}).task == recipe.task


def test_arguments_of_the_recipe_precede_recorded_arguments():
    recorded = {"variant": "ViT-S/16", "arguments": {"dropout_rate": 0.1, "pooling": "gap"}}
    found = recipes.resolve(recipes.Recipe(model=recipes.Model(arguments={"dropout_rate": 0.3})), recorded).model
    assert (found.variant, found.arguments) == ("ViT-S/16", {"dropout_rate": 0.3, "pooling": "gap"})


@pytest.mark.slow
def test_regularization_of_a_checkpoint_is_not_taken_over(tmp_path):
    """Fine-tuning takes over the architecture of a checkpoint, but not the regularization of its training."""
    noise = {"dropout_rate": 0.1, "attention_dropout_rate": 0.2, "drop_path_rate": 0.4, "head_bias": -3.0}
    tiny.model(**noise, layer_scale=0.1).save(tmp_path / "trained.keras")
    model = recipes.Model("ViT-Ti/16", weights=str(tmp_path / "trained.keras"), image_size=tiny.SIZE)
    taken = recipes.resolve(recipes.Recipe(model=model)).model.arguments
    assert taken["layer_scale"] == 0.1 and taken["hidden_size"] == 16
    assert not set(taken) & set(noise)


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("model.weights", "None", None),
        ("model.weights", "", None),
        ("model.weights", "augreg", "augreg"),
        ("optim.schedule.boundaries", "3,5", (3, 5)),
        ("optim.schedule.boundaries", "3", (3,)),
        ("optim.schedule.boundaries", "", ()),
        ("deterministic", "0", False),
        ("deterministic", "true", True),
        ("deterministic", "FALSE", False),
        ("model.arguments.qkv_bias", "false", False),
        ("optim.schedule.boundaries", "[3, 5]", (3, 5)),
        ("total_steps", "1e3", 1000),
    ],
)
def test_fields_are_parsed_from_the_command_line(path, text, value):
    assert recipes.get(recipes.override(recipes.Recipe(), path, text), path) == value


@pytest.mark.slow
def test_initial_weights_depend_on_the_seed():
    sizes = {"hidden_size": 8, "num_layers": 1, "num_heads": 1, "mlp_dim": 8, "patch_size": 8}

    def kernel(seed):
        recipe = recipes.Recipe(seed=seed, model=recipes.Model("ViT-Ti/16", image_size=8, arguments=sizes))
        return recipes.build_model(recipe, classes=2).get_layer("embedding").get_weights()[0].tolist()

    assert kernel(1) == kernel(1) != kernel(2)


@pytest.mark.parametrize("weights", ["augreg", "augreg-imagenet21k", "augreg-224"])
def test_another_variant_keeps_the_kind_of_weights(weights):
    chosen = recipes.with_weights(recipes.Recipe(model=recipes.Model("ViT-B/16")), weights)
    assert recipes.with_variant(chosen, "ViT_S16").model.weights == weights
