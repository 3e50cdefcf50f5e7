"""Segmentation on the features of a trained model must succeed. `make test-real` runs these tests."""

import pytest

from keras_vit.runs.run_directory import last_evaluation
from tests import programs
from tools import real_dinov2

pytestmark = [pytest.mark.real, pytest.mark.slow]

NORM = "value_norm((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))"
FLAGS = [
    "--config=segmentation",
    "--config.optim.schedule.warmup_steps=8",
    *(f"--config.{field}=0" for field in ("log_every", "eval_every", "checkpoint_every")),
]


def miou(folder, name, size, *flags):
    """The mIoU of the test images after a short training on shapes and digits in random textures."""
    spec = f"--data=folder:{folder}/shapes/images#masks={folder}/shapes/masks"
    pp = [
        f"--config.data.pp_train=decode|resize({size})|flip_lr|{NORM}",
        f"--config.data.pp_eval=decode|resize({size})|{NORM}",
    ]
    flags = [*FLAGS, *pp, f"--image_size={size}", f"--workdir={folder}/{name}", "--config.total_steps=40", *flags]
    code, output = programs.run("train.main", spec, *flags)
    assert code == 0, output
    return last_evaluation(str(folder / name))["test_miou"]


def test_a_linear_head_on_dinov2_beats_random_features(tmp_path):
    """At 168 pixels and in 80 steps: 59.5% and 16.0%, and 20.6% of a ViT-Ti/16 from scratch. Here: fewer of all."""
    path = real_dinov2.find()
    if path is None:
        pytest.skip(f"the wheel is not installed: make test-real installs {real_dinov2.WHEEL}")
    real_dinov2.write(path, str(tmp_path / "dinov2"))
    code, output = programs.run("train.sample_data", "--set=shapes", f"--output={tmp_path}/shapes", "--count=100")
    assert code == 0, output
    frozen = ["--model=ViT_S14", "--adapt=head", "--config.optim.learning_rate=0.01"]
    trained = miou(tmp_path, "trained", 112, *frozen, f"--weights={tmp_path}/dinov2")
    random = miou(tmp_path, "random", 112, *frozen, "--weights=none")
    assert trained > random + 0.15, (trained, random)
