"""Wrong arguments of the library: each message names the argument, and often the remedy."""

import functools
import pathlib

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data, inspection, optim
from keras_vit.models import BiTConfig, ViTConfig
from tests import tiny

IMAGES = np.linspace(-1, 1, 4 * 16 * 16 * 3, dtype="float32").reshape(4, 16, 16, 3)


@functools.cache
def model():
    return tiny.model()


@functools.cache
def headless():
    return tiny.model(include_top=False)


@functools.cache
def clone():
    return keras.models.clone_model(model())


def compiled(optimizer):
    keras.Sequential([keras.layers.Dense(1)]).compile(optimizer)


def source():
    return data.open_source("digits")


def batches(**arguments):
    return data.train_batches(source(), "value_range(-1, 1)", 8, **arguments)


PP = "value_range(-1, 1)"
# By name: the call, the type of its exception, and words of the message.
CASES = {
    # Models
    "activation of the head": (
        lambda: ViTConfig(classifier_activation="sofmax"),
        ValueError,
        "classifier_activation softmax",
    ),
    "head bias, text": (lambda: ViTConfig(head_bias="x"), ValueError, "head_bias 'x'"),
    "head bias, None": (lambda: BiTConfig(head_bias=None), ValueError, "head_bias None"),
    "ResNet, number": (lambda: ViTConfig(resnet_blocks=3), ValueError, "resnet_blocks list resnet_blocks=3"),
    "ResNet, text": (lambda: BiTConfig(block_sizes="3463"), ValueError, "block_sizes list"),
    "stages by another name": (lambda: keras_vit.BiTResNet(num_blocks=(1,)), TypeError, "num_blocks `block_sizes`"),
    "range, number": (lambda: ViTConfig(input_range=255), ValueError, "input_range=255 (0, 255)"),
    "range, order": (lambda: BiTConfig(input_range=(255, 0)), ValueError, "input_range=(255, 0)"),
    "preprocessing inside": (lambda: keras_vit.ViT_B16(include_preprocessing=True), TypeError, "input_range=(0, 255)"),
    "mean": (lambda: keras_vit.ViT_B16(include_top=False, pooling="avg"), ValueError, "pooling 'gap' 'avg'"),
    "maximum": (lambda: ViTConfig(pooling="max"), ValueError, "pooling 'max' GlobalMaxPooling1D"),
    "pooling of a ResNet": (lambda: keras_vit.BiT_R50x1(pooling="avg"), TypeError, "'pooling' include_top=False mean"),
    "shape of Keras": (lambda: keras_vit.ViT_B16(input_shape=(32, 32, 1)), TypeError, "`image_size` `channels`"),
    "tensor of Keras": (lambda: keras_vit.ViT_B16(input_tensor=IMAGES), TypeError, "'input_tensor' call the model"),
    "clone, saved": (lambda: keras_vit.save_checkpoint(clone(), "x.npz"), ValueError, "`model` Functional deepcopy"),
    "clone, loaded": (lambda: keras_vit.load_checkpoint(clone(), "x.npz"), ValueError, "`model` Functional deepcopy"),
    "clone, features": (lambda: keras_vit.feature_extractor(clone()), ValueError, "`model` Functional deepcopy"),
    "too many": (lambda: keras_vit.VisionTransformer(*range(40)), TypeError, "VisionTransformer() too many"),
    "too many of a variant": (lambda: keras_vit.ViT_B16(*range(40)), TypeError, "ViT_B16() too many"),
    "call, path": (lambda: model()("image.jpg"), ValueError, "(None, 16, 16, 3) 'image.jpg'"),
    "call, None": (lambda: model()(None), ValueError, "(None, 16, 16, 3) None"),
    "call, two": (lambda: model().predict([IMAGES, IMAGES]), ValueError, "(None, 16, 16, 3) tuple of 2"),
    "call, dict": (lambda: model()({"a": IMAGES, "b": IMAGES}), ValueError, "(None, 16, 16, 3) 'a' 'b'"),
    "vit_b16": (lambda: keras_vit.vit_b16, AttributeError, "'vit_b16' 'ViT_B16'"),
    "ViTB16": (lambda: keras_vit.ViTB16, AttributeError, "'ViTB16' 'ViT_B16'"),
    # Images and predictions
    "pixels, path": (lambda: keras_vit.preprocess_input("image.jpg"), ValueError, "images 'image.jpg'"),
    "pixels, None": (lambda: keras_vit.preprocess_input(None), ValueError, "images None"),
    "names, text": (
        lambda: keras_vit.decode_predictions(np.zeros((1, 5)), class_names="abcde"),
        ValueError,
        "class_names list 'abcde'",
    ),
    "no classes": (lambda: keras_vit.decode_predictions(np.zeros((1, 1000)), top=0), ValueError, "top=0"),
    "predictions, text": (lambda: keras_vit.decode_predictions("cat"), ValueError, "predictions 'cat'"),
    # Data
    "source, path": (lambda: data.open_source(pathlib.Path("tests")), ValueError, "'folder:tests'"),
    "source, folder": (lambda: data.open_source("tests"), ValueError, "'folder:tests'"),
    "source, None": (lambda: data.open_source(None), ValueError, "None 'digits'"),
    "source of batches": (lambda: data.train_batches("digits", PP, 8), ValueError, "source open_source 'digits'"),
    "source of an evaluation": (lambda: data.eval_batches("digits", PP, 8), ValueError, "source open_source 'digits'"),
    "mixup": (lambda: batches(mixup="a"), ValueError, "mixup='a'"),
    "seed": (lambda: batches(seed="a"), ValueError, "seed='a'"),
    "shuffle buffer": (lambda: batches(shuffle_buffer=-1), ValueError, "shuffle_buffer=-1"),
    "tuples and mixup": (lambda: batches(mixup=0.2, as_tuples=True), ValueError, "as_tuples mixup=0.2"),
    # Inspection
    "maps, path": (
        lambda: inspection.attention_maps("runs/digits", IMAGES),
        ValueError,
        "model 'runs/digits' load_model",
    ),
    "maps, images as text": (lambda: inspection.attention_maps(model(), "cat.jpg"), ValueError, "images 'cat.jpg'"),
    "rollout, model": (lambda: inspection.attention_rollout(model(), IMAGES), ValueError, "maps attention_maps"),
    "rollout, array": (lambda: inspection.attention_rollout(np.zeros((1, 2, 5, 5))), ValueError, "maps [B, H, N, N]"),
    "rollout, heads": (
        lambda: inspection.attention_rollout([np.zeros((1, 2, 5, 5))], IMAGES),
        ValueError,
        "head_fusion (4, 16, 16, 3)",
    ),
    "relevance, classes": (
        lambda: inspection.gradient_attention(model(), IMAGES, class_index=[1, 2]),
        ValueError,
        "class_index 4 images [1, 2]",
    ),
    "relevance, name": (
        lambda: inspection.gradient_attention(model(), IMAGES, class_index="cat"),
        ValueError,
        "class_index 'cat'",
    ),
    "relevance, no head": (
        lambda: inspection.gradient_attention(headless(), IMAGES),
        ValueError,
        "include_top=False head",
    ),
    "occlusion, class": (
        lambda: inspection.occlusion_sensitivity(model().predict_on_batch, IMAGES[0], class_index=9),
        ValueError,
        "class_index 0..6 9",
    ),
    "occlusion, name": (
        lambda: inspection.occlusion_sensitivity(model().predict_on_batch, IMAGES[0], class_index="cat"),
        ValueError,
        "class_index 'cat'",
    ),
    "occlusion, model": (
        lambda: inspection.occlusion_sensitivity("runs/digits", IMAGES[0]),
        ValueError,
        "predict function 'runs/digits'",
    ),
    "cka": (lambda: inspection.cka("a", "b"), ValueError, "x 'a'"),
    "similarity": (lambda: inspection.layer_similarity(model(), None, IMAGES), ValueError, "other None"),
    "features": (lambda: inspection.layer_features(None, IMAGES), ValueError, "model None"),
    # Optimizers
    "schedule": (lambda: optim.create_schedule("cos", 0.1, 10), ValueError, "schedule Schedule 'cos'"),
    "optimizer": (lambda: optim.create_optimizer("adamw"), ValueError, "optim Optim 'adamw'"),
    "optimizer of Keras": (lambda: compiled(optim.AdamW(1e-3)), ValueError, "keras_vit.optim.AdamW keras.optimizers"),
}


@pytest.mark.parametrize("name", CASES)
def test_message_names_the_wrong_argument(name):
    call, error_type, words = CASES[name]
    with pytest.raises(error_type) as error:
        call()
    assert type(error.value) is error_type
    for word in words.split():
        assert word in str(error.value), str(error.value)
    assert len(str(error.value)) < 1500


@pytest.mark.slow
def test_keywords_and_single_names_are_accepted():
    """A keyword, and one name in place of a list of names."""
    assert keras_vit.create_model(variant="ViT-Ti/16", image_size=32, classes=2).name == "vit_ti16"
    features = inspection.layer_features(model(), IMAGES, layers="encoder_norm")
    assert list(features) == ["encoder_norm"]
