import pathlib

import pytest

from tests import import_order

ROOT = pathlib.Path(__file__).parent.parent


def write_tree(root, files):
    """A small project: `files` on top of an empty layers package, a data module and two programs."""
    blank = ("keras_vit/__init__.py", "keras_vit/version.py", "keras_vit/layers/__init__.py", "keras_vit/layers/mlp.py")
    for path in (*blank, "keras_vit/models.py", "keras_vit/data.py", "train/main.py", "export/tflite.py"):
        files = {path: "", **files}
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return import_order.check(root)


def test_backend_specific_imports_are_inside_functions(tmp_path):
    path = "keras_vit/inspection/relevance.py"
    lazy = "def gradients():\n    import tensorflow as tf\n    import jax\n"
    assert write_tree(tmp_path / "a", {path: lazy, "train/main.py": "def f():\n    import jax"}) == []
    (problem,) = write_tree(tmp_path / "b", {path: "import tensorflow as tf"})
    assert "imports TensorFlow, which only" in problem
    (problem,) = write_tree(tmp_path / "c", {"keras_vit/inspection/other.py": lazy.replace("import jax", "pass")})
    assert "imports TensorFlow, which only" in problem


def test_jax_is_imported_only_in_its_package(tmp_path):
    path, importing = "keras_vit/training/engine.py", "from keras_vit.training.jax import step"
    files = {
        "keras_vit/training/jax/step.py": "import jax",
        "keras_vit/training/jax/loop.py": f"import jax\n{importing}",
    }
    assert write_tree(tmp_path / "a", {**files, path: f"def f():\n    {importing}"}) == []
    (problem,) = write_tree(tmp_path / "b", {**files, path: importing})
    assert "imports keras_vit.training.jax.step at the top, which needs JAX" in problem


@pytest.mark.slow
def test_project_follows_the_import_order():
    files = import_order.source_files(ROOT)
    assert any(path.name == "version.py" for path in files)
    assert import_order.check(ROOT) == []


def test_correct_imports_pass(tmp_path):
    files = {
        "keras_vit/__init__.py": "from keras_vit import layers, models\nfrom .version import __version__\n",
        "keras_vit/layers/__init__.py": "from keras_vit.layers.mlp import Mlp\n",
        "keras_vit/layers/mlp.py": "import keras\nimport math\nfrom ..version import __version__\n",
        "keras_vit/models.py": "import typing\nif typing.TYPE_CHECKING:\n    from keras_vit import layers\n",
        "keras_vit/data.py": "import tensorflow as tf\ndef load():\n    import tensorflow_datasets as tfds\n",
        "train/main.py": "from keras_vit import data\nimport tensorflow as tf\n",
        "train/configs/digits.py": "from keras_vit import data\n",
    }
    assert write_tree(tmp_path, files) == []


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("keras_vit/models.py", "if TYPE_CHECKING:\n    from keras_vit import data\n", "upward import of 'data'"),
        ("keras_vit/layers/mlp.py", "from keras_vit import models", "upward import of 'models' in 'layers'"),
        ("keras_vit/layers/mlp.py", "from keras_vit.models import ViT", "upward import of 'models' in 'layers'"),
        ("keras_vit/layers/mlp.py", "import keras_vit.models", "upward import of 'models' in 'layers'"),
        ("keras_vit/layers/mlp.py", "from .. import models", "upward import of 'models' in 'layers'"),
        ("keras_vit/layers/__init__.py", "from ..models import ViT", "upward import of 'models' in 'layers'"),
        ("keras_vit/layers/mlp.py", "def f():\n    from keras_vit import data", "upward import of 'data' in 'layers'"),
        ("keras_vit/models.py", "import keras_vit", "the package keras_vit as a whole"),
        ("keras_vit/models.py", "from keras_vit import ViT_B16", "the package keras_vit as a whole"),
        ("keras_vit/models.py", "from train import main", "the library imports a program, train.main"),
        ("keras_vit/models.py", "import tensorflow as tf", "imports TensorFlow"),
        ("keras_vit/models.py", "def f():\n    from tensorflow import nn", "imports TensorFlow"),
        ("keras_vit/models.py", "import importlib\ntf = importlib.import_module('tensorflow')", "imports TensorFlow"),
        ("keras_vit/__init__.py", "import tensorflow", "imports TensorFlow"),
        ("train/main.py", "from train import evaluate", "a program imports another program"),
        ("train/main.py", "from export.tflite import convert", "a program imports another program"),
        ("train/main.py", "from train.configs import digits", "a program imports another program"),
        ("train/configs/digits.py", "from train import main", "a program imports another program"),
        ("keras_vit/data.py", "import tensorflow_datasets", "the optional 'tensorflow_datasets' at the top"),
        (
            "keras_vit/data.py",
            "try:\n    import jax\nexcept ImportError:\n    jax = None",
            "the optional 'jax' at the top",
        ),
        ("keras_vit/data.py", "import pandas", "imports 'pandas', which setup.py does not require"),
        ("keras_vit/utils.py", "", "'utils' has no place in the import order"),
    ],
)
def test_a_bad_import_is_found(tmp_path, path, text, message):
    problems = write_tree(tmp_path, {path: text})
    assert len(problems) == 1, problems
    assert message in problems[0]
    assert problems[0].startswith(path)


def test_optional_dependency_is_imported_in_one_module(tmp_path):
    lazy = "def f():\n    import matplotlib.pyplot as plt\n"
    problems = write_tree(tmp_path, {"keras_vit/inspection/plots.py": lazy, "train/main.py": lazy})
    assert problems == [
        "the optional 'matplotlib' is imported in more than one module: "
        "['keras_vit/inspection/plots.py:2', 'train/main.py:2']"
    ]
