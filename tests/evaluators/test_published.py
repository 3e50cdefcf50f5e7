"""Constants, data set names and classes that evaluators take from publications, each typed here from its source."""

import hashlib

import pytest

from keras_vit import evaluators
from keras_vit.data.readers import vtab
from keras_vit.evaluators import class_subset, classification, fewshot, knn, linear_fit, linear_probe
from train.configs import common


def test_constants_match_the_published_code():
    # big_vision, evaluators/fewshot_lsr.py and configs/common_fewshot.py.
    assert (fewshot.FewShot.l2, fewshot.FewShot.shots, fewshot.BIAS) == (1024.0, (1, 5, 10, 25), 100.0)
    assert fewshot.FewShot().seeds == 3
    # Wu et al. 2018, section 3.4: temperature 0.07, up to 200 neighbors.
    assert (knn.Knn.neighbors, knn.Knn.temperature) == ((1, 5, 10, 20, 50, 100, 200), 0.07)
    # Guo et al. 2017, section 5: 15 bins.
    assert classification.CALIBRATION_BINS == 15
    # Our own: a tenth held out, and strengths in steps of ten, and of sixteen around the 1024 of few-shot.
    assert (linear_probe.HELD_OUT, linear_fit.MAX_ITERATIONS) == (0.1, 200)
    assert linear_probe.L2["lbfgs"] == pytest.approx((1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0))
    assert linear_probe.L2["ridge"] == (0.0625, 1.0, 16.0, 256.0, 4096.0, 65536.0, 1048576.0)


def test_evaluators_by_name_have_the_published_defaults():
    suite = evaluators.Suite(["linear_probe", "real(source='x')", "subset(classes=[0], source='x')"])
    made = suite.evaluators
    assert made["linear_probe"] == linear_probe.LinearProbe(solver="lbfgs", l2=linear_probe.L2["lbfgs"])
    assert (made["real"].split, made["subset"].split) == ("validation", "test")  # as TensorFlow Datasets call them


def test_imagenet_evaluators_match_big_vision():
    """The evaluations of big_vision's configs/vit_i1k.py, with the names of TensorFlow Datasets."""
    assert common.IMAGENET_EVALUATORS == (
        "classification(name='train', split='train[:2%]')",
        "classification(name='minival', split='train[99%:]')",
        "classification(name='v2', source='tfds:imagenet_v2', split='test')",
        "real(source='tfds:imagenet2012_real#label=real_label')",
    )


# Of the class numbers, joined by commas; compared with timm's imagenet_a_indices.txt and imagenet_r_indices.txt.
CLASSES_SHA256 = {
    "imagenet_a": "973e8c3e530bf5dbd49999d046e74084ba5184ab98036b42b111d8dcdecf1015",
    "imagenet_r": "a1d9a9ace3098120f5db861d97049116efe80683f4e48c65a62f9bd30fc3366a",
}


def test_classes_of_subsets_match_the_published_lists():
    found = {
        name: hashlib.sha256(",".join(map(str, classes)).encode()).hexdigest()
        for name, classes in class_subset.SUBSETS.items()
    }
    assert found == CLASSES_SHA256


@pytest.mark.parametrize("name", ["imagenet_v2", "imagenet_a", "imagenet_r", "imagenet2012_real", "uc_merced"])
def test_data_sets_exist_in_tensorflow_datasets(name):
    tfds = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("importlib_resources")  # TensorFlow Datasets 4.9 needs it and does not always install it
    assert tfds.builder_cls(name).name == name


# task_adaptation, data/*.py: data set (of pets and KITTI the version that there is still), its splits, and the number
# of classes where the label is computed. Splits are: percent of "train" to train on and to validate on, name of the
# test split.
TASKS = {
    "caltech101": ("caltech101:3.*.*", (90,), "test", "label", None),
    "cifar100": ("cifar100:3.*.*", (90,), "test", "label", None),
    "dtd": ("dtd:3.*.*", vtab.THREE, "test", "label", None),
    "flowers102": ("oxford_flowers102:2.*.*", vtab.THREE, "test", "label", None),
    "pets": ("oxford_iiit_pet:4.*.*", (80,), "test", "label", None),
    "sun397": ("sun397/tfds:4.*.*", vtab.THREE, "test", "label", None),
    "svhn": ("svhn_cropped:3.*.*", (90,), "test", "label", None),
    "patch_camelyon": ("patch_camelyon:2.*.*", vtab.THREE, "test", "label", None),
    "eurosat": ("eurosat/rgb:2.*.*", (60, 20), None, "label", None),
    "resisc45": ("resisc45:3.*.*", (60, 20), None, "label", None),
    "diabetic_retinopathy": (
        "diabetic_retinopathy_detection/btgraham-300:3.*.*",
        vtab.THREE,
        "test",
        "label",
        None,
    ),
    "clevr_count": ("clevr:3.*.*", (90,), "validation", None, 8),
    "clevr_distance": ("clevr:3.*.*", (90,), "validation", None, 6),
    "dmlab": ("dmlab:2.0.1", vtab.THREE, "test", "label", None),
    "kitti_distance": ("kitti:3.*.*", vtab.THREE, "test", None, 4),
    "dsprites_location": ("dsprites:2.*.*", (80, 10), None, None, 16),
    "dsprites_orientation": ("dsprites:2.*.*", (80, 10), None, None, 16),
    "smallnorb_azimuth": ("smallnorb:2.*.*", "halved test", "test", "label_azimuth", None),
    "smallnorb_elevation": ("smallnorb:2.*.*", "halved test", "test", "label_elevation", None),
}


def test_vtab_tasks_match_the_published_code():
    found = {
        name: (task.dataset, task.split, task.test, None if callable(task.label) else task.label, task.num_classes)
        for name, task in vtab.TASKS.items()
    }
    assert found == TASKS
    assert (evaluators.vtab.TRAIN, evaluators.vtab.VALIDATION, evaluators.vtab.TEST) == ("train800", "val200", "test")


def test_vtab_groups_match_the_paper():
    """Zhai et al. 2019, table 1."""
    assert evaluators.vtab.GROUPS == {
        "natural": ("caltech101", "cifar100", "dtd", "flowers102", "pets", "sun397", "svhn"),
        "specialized": ("patch_camelyon", "eurosat", "resisc45", "diabetic_retinopathy"),
        "structured": (
            "clevr_count",
            "clevr_distance",
            "dmlab",
            "kitti_distance",
            "dsprites_location",
            "dsprites_orientation",
            "smallnorb_azimuth",
            "smallnorb_elevation",
        ),
    }
