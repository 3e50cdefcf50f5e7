"""Costs against published numbers, against the weights of built models, and against the operations of their graphs."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import recipe as recipes
from keras_vit.layers import kernels
from keras_vit.models import BiTConfig, MaskedAutoencoder, VisionTransformer, ViTConfig
from keras_vit.models.layer_walk import walk
from keras_vit.runs import run_directory
from keras_vit.training.planning import cost, plan
from tests import selection, tiny
from tests.models import variants
from tests.models.test_counts import COUNTS

# Multiply-adds at 224 pixels as the field has them: 17.6 of ViT-B/16 (DeiT, table 5, and timm), 4.1 of a ResNet-50.
MACS = {"ViT-B/16": 17.6e9, "ViT-S/16": 4.6e9, "ViT-Ti/16": 1.3e9, "ViT-L/16": 61.6e9, "BiT-R50x1": 4.1e9}

# Appendix of "An Image is Worth 16x16 Words", table 6: operations of pre-training on JFT-300M, in 10^18.
EXAFLOPS = {
    ("ViT-B/32", 7): 55,
    ("ViT-B/16", 7): 224,
    ("ViT-L/32", 7): 196,
    ("ViT-L/16", 7): 783,
    ("ViT-L/16", 14): 1567,
    ("ViT-H/14", 14): 4262,
    ("BiT-R50x1", 7): 50,
    ("BiT-R101x1", 7): 96,
    ("BiT-R152x2", 7): 563,
    ("R50+ViT-B/16", 7): 274,
    ("R50+ViT-L/32", 7): 246,
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_equal_the_published_counts(name):
    assert cost.of_variant(name).parameters == COUNTS[name]


@pytest.mark.parametrize("name", MACS)
def test_multiply_adds_equal_the_published_counts(name):
    # Published with two digits, and with or without norms and activation functions.
    assert cost.of_variant(name).macs == pytest.approx(MACS[name], rel=0.04)


@pytest.mark.parametrize(("name", "epochs"), EXAFLOPS)
def test_operations_of_pretraining_equal_the_counts_of_the_paper(name, epochs):
    flops = cost.of_variant(name, classes=18_291).training_flops * epochs * 303e6
    # Rounded to whole numbers there; the paper counted its ResNets a little lower.
    tolerance = 0.06 if name.startswith("BiT") else 0.025
    assert flops == pytest.approx(EXAFLOPS[name, epochs] * 1e18, rel=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    selection.cases(
        variants.VARIANTS,
        variants.QUICK,
        lambda name: pytest.mark.slow if name in ("relative", "registers", "deit") else selection.EXHAUSTIVE,
    ),
)
def test_built_models_have_the_counted_weights_and_operations(name):
    size = {"image_size": 224} if "image_size" in (variants.VARIANTS[name] or {}) else {}
    model = variants.make(name, **size)
    counted = cost.of_config(model.config)
    assert counted.parameters == sum(int(np.prod(weight.shape)) for weight in model.trainable_variables)
    assert counted.macs == graph_macs(model)


@pytest.mark.slow
def test_rectangular_images_and_patches_are_counted():
    """Images and patches that are higher than wide."""
    sizes = {**tiny.ARGUMENTS, "image_size": (24, 12), "patch_size": (3, 2), "position_embedding": "learned2d"}
    model = VisionTransformer(**sizes, classes=2)
    counted = cost.of_config(model.config)
    assert counted.parameters == sum(int(np.prod(weight.shape)) for weight in model.trainable_variables)
    assert counted.macs == graph_macs(model)
    tall, wide = (cost.of_variant("BiT-R50x1", image_size=size) for size in ((129, 65), (65, 129)))
    assert tall == wide
    config = BiTConfig(block_sizes=(1,), width_factor=1, image_size=(37, 21), classes=2)
    places = 19 * 11, 10 * 6  # after the root and after the pooling: halves, rounded up
    assert cost.of_config(config).macs == (
        places[0] * 7 * 7 * 3 * 64 + places[1] * (64 * 256 + 64 * 64 + 3 * 3 * 64 * 64 + 64 * 256) + 256 * 2
    )


@pytest.mark.parametrize("options", [{}, {"layer_scale": 0.1, "head_dim": 4, "output_projection": "no_bias"}])
def test_masked_autoencoders_have_the_counted_weights(options):
    """The options of the encoder counted for the decoder, too, which does not have them."""
    sizes = {**tiny.ARGUMENTS, "patch_size": 8, "image_size": 16}
    decoder = {"decoder_hidden_size": 8, "decoder_num_layers": 1, "decoder_num_heads": 2}
    model = MaskedAutoencoder(**sizes, **decoder, **options)
    assert cost.of_config(model.config).parameters == sum(int(np.prod(weight.shape)) for weight in model.weights)


def graph_macs(model):
    """Return the multiply-adds of all products and convolutions for one image.

    All tokens count, as in the paper: the model itself leaves out those of the last block that nothing reads.
    """
    function = tf.function(
        lambda images: walk(model, images, lambda layer, *args, **kwargs: layer(*args, **kwargs)), autograph=False
    )
    with kernels.plain():  # the loop of a kernel over chunks of a long input is one operation of the graph
        graph = function.get_concrete_function(tf.TensorSpec((1, *model.inputs[0].shape[1:]))).graph
    operations = list(graph.get_operations())
    for inner in graph._functions.values() if hasattr(graph, "_functions") else ():
        operations += inner.graph.get_operations()
    return sum(operation_macs(operation) for operation in operations)


def operation_macs(operation):
    if operation.type == "Conv2D":
        kernel, result = operation.inputs[1].shape.as_list(), operation.outputs[0].shape.as_list()
        return int(np.prod(kernel)) * result[1] * result[2]
    if operation.type in ("MatMul", "BatchMatMulV2", "BatchMatMul"):
        transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
        shape = operation.inputs[0].shape.as_list()
        return int(np.prod(operation.outputs[0].shape.as_list())) * shape[-2 if transposed else -1]
    if operation.type == "Einsum":
        sizes = {}
        for letters, tensor in zip(
            operation.get_attr("equation").decode().split("->")[0].split(","), operation.inputs, strict=True
        ):
            sizes |= dict(zip(letters, tensor.shape.as_list(), strict=True))
        return int(np.prod(list(sizes.values()))) if len(operation.inputs) == 2 else 0
    return 0


def test_unknown_variant_names_are_refused():
    with pytest.raises(ValueError, match="no model named 'ViT-B/17'.*Known names: .*ViT-B/16"):
        cost.of_variant("ViT-B/17")
    assert cost.of_variant("ViT_B16") == cost.of_variant("ViT-B/16")  # the name of the constructor


def test_plan_of_a_recipe_counts_time_and_memory():
    recipe = recipes.Recipe(
        total_steps=1_000,
        precision="mixed_bfloat16",
        model=recipes.Model("ViT-B/16"),
        data=recipes.Data(batch_size=512),
        optim=recipes.Optim("adamw", momentum_dtype="bfloat16", accumulation_steps=4, ema_momentum=0.999),
    )
    planned = plan.of_recipe(recipe, classes=1000, num_examples=51_200, devices=8)
    assert planned.epochs == 10
    assert planned.cost.parameters == COUNTS["ViT-B/16"]
    assert planned.examples_seen == 512_000
    # Weight 4, gradient and its sum 8, first moment 2, second moment 4, average 4.
    assert planned.weights_bytes == 22 * COUNTS["ViT-B/16"]
    stored = recipes.replace(recipe, {"precision": "bfloat16"})  # weights of two bytes
    assert plan.of_recipe(stored, classes=1000, devices=8).weights_bytes == 20 * COUNTS["ViT-B/16"]
    assert planned.activations_bytes == planned.cost.activations * (512 // 8 // 4) * 2
    for variant, precision, factor in (
        *(("ViT-B/16", "mixed_bfloat16", 1.5), ("ViT-B/16", "float32", 1.15)),
        *(("BiT-R50x1", "mixed_bfloat16", 1.75), ("BiT-R50x1", "float32", 1.75)),
    ):  # as measured
        other = plan.of_recipe(
            recipes.replace(recipe, {"model.variant": variant, "precision": precision}), classes=1000
        )
        assert other.peak_bytes == round(factor * other.activations_bytes)
    # 17.56 G * 6 * 512,000 operations; at the whole peak of 61.5e12 a core and second that is 877 s.
    assert planned.core_days(1.0) * 86_400 == pytest.approx(877, rel=0.01)
    assert planned.core_days(0.25) == pytest.approx(4 * planned.core_days(1.0))
    assert planned.core_days() == planned.core_days(0.3)


def test_plan_of_a_distillation_includes_the_teacher(tmp_path):
    task = f"distillation({str(tmp_path)!r})"
    student = recipes.Recipe(model=recipes.Model("ViT-S/16"), data=recipes.Data(batch_size=8), task=task)
    alone = plan.of_recipe(student, classes=10)
    assert alone.teacher is None  # no such run yet
    assert alone.step_flops == 8 * 6 * alone.cost.macs
    teacher = recipes.Recipe(model=recipes.Model("BiT-R50x1", image_size=160))
    data = {"class_names": [f"class {number}" for number in range(10)]}
    run_directory.write_config(str(tmp_path), teacher, data)
    both = plan.of_recipe(student, classes=10)
    assert both.teacher == plan.of_recipe(teacher, classes=10).cost
    assert both.step_flops == alone.step_flops + 8 * 2 * both.teacher.macs
    assert both.weights_bytes == alone.weights_bytes + 4 * both.teacher.parameters


@pytest.mark.parametrize(
    ("optim", "bytes_per_weight"),
    [
        ({"name": "sgd"}, 4 + 4 + 4),  # weight, gradient, momentum
        ({"name": "sgd", "momentum_dtype": "bfloat16"}, 4 + 4 + 2),
        ({"name": "adamw"}, 4 + 4 + 4 + 4),
        # two sets of gradients, an average
        ({"name": "sgd", "ema_momentum": 0.9, "accumulation_steps": 2}, 4 + 8 + 4 + 4),
    ],
)
def test_memory_per_device_counts_weights_and_optimizer_slots(optim, bytes_per_weight):
    """Ten images on four devices are three at a time, or two micro-batches of two."""
    recipe = recipes.Recipe(data=recipes.Data(batch_size=10), optim=recipes.Optim(**optim))
    planned = plan.of_recipe(recipe, classes=10, devices=4)
    assert planned.weights_bytes == planned.cost.parameters * bytes_per_weight
    of_host = 0.2e9 + 4 * planned.cost.parameters  # the graph, and the weights in the file of the final model
    assert planned.total_bytes() == planned.weights_bytes + planned.peak_bytes + of_host
    assert planned.activations_bytes == planned.cost.activations * (2 if "ema_momentum" in optim else 3) * 4


def test_positions_of_every_layer_are_weights_of_every_layer():
    def positions(**arguments):
        sizes = {**tiny.ARGUMENTS, "num_layers": 3, "image_size": 16}
        config = ViTConfig(**sizes, classes=2, **arguments)
        return cost.of_config(config).parameters

    table = (16 + 1) * 16  # of 4 x 4 patches and the class token
    without = positions(position_embedding="none")
    assert positions() - without == table
    assert positions(position_embedding_at="every_layer") - without == 3 * table
    assert positions(position_embedding_at="every_layer_shared") - without == table


@pytest.mark.parametrize(
    ("tokens", "count"), [({"pooling": "gap"}, 0), ({}, 1), ({"distillation_token": True, "activation": "gelu"}, 2)]
)
def test_rows_columns_and_prefix_tokens_have_positions(tokens, count):
    """Rows and columns share the width, and each prefix token has the whole width."""
    found = [
        cost.of_config(
            ViTConfig(**{**tiny.ARGUMENTS, "image_size": (8, 12)}, classes=2, position_embedding=at, **tokens)
        )
        for at in ("learned2d", "none")
    ]
    assert found[0].parameters - found[1].parameters == (2 + 3) * 16 // 2 + count * 16
