"""The installed package: its contents, its commands, and the effects of an import."""

import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import zipfile

import pytest

from keras_vit.cli import commands
from keras_vit.runs import recipe_file

ROOT = pathlib.Path(__file__).parent.parent
COPIED = ("keras_vit", "train", "export", "setup.py", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of the sources, built with the setuptools that is installed."""
    source = tmp_path_factory.mktemp("source")
    for name in COPIED:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.exists():
            shutil.copy(path, source / name)
    output = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", output, source], check=True, capture_output=True, text=True)
    (path,) = output.glob("*.whl")
    return path


def run_python(code, **environment):
    """Run `code` in another process, outside the checkout, and return its output."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_package_metadata_is_complete(metadata):
    version = runpy.run_path(str(ROOT / "keras_vit/version.py"))["__version__"]
    assert metadata["name"] == "keras-vision-transformers"
    assert metadata["version"] == version
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", version)
    assert metadata["package_dir"]["keras_vit._train"] == "train"
    assert metadata["package_dir"]["keras_vit._export"] == "export"
    assert metadata["package_dir"]["keras_vit.configs"] == "train/configs"
    assert all(name == "keras_vit" or name.startswith("keras_vit.") for name in metadata["packages"])
    for package, folder in metadata["package_dir"].items():
        assert (ROOT / folder / "__init__.py").exists(), f"{package} needs {folder}/__init__.py for editable installs"
    assert not any(requirement.startswith("tensorflow") for requirement in metadata["install_requires"])


@pytest.mark.slow
def test_reading_the_metadata_does_not_import_the_package():
    code = (
        "import sys, runpy, setuptools; setuptools.setup = lambda **_: None\n"
        f"runpy.run_path({str(ROOT / 'setup.py')!r})\n"
        "print([name for name in ('keras_vit', 'keras', 'tensorflow', 'numpy') if name in sys.modules])"
    )
    assert run_python(code).strip() == "[]"


def test_every_program_is_a_command(metadata):
    assert metadata["entry_points"]["console_scripts"] == ["keras-vit = keras_vit.cli.commands:main"]
    paths = [path for folder in ("train", "export") for path in ROOT.glob(f"{folder}/*.py")]
    programs = {f"{path.parent.name}.{path.stem}" for path in paths if "cli.run(main)" in path.read_text("utf-8")}
    assert programs == set(commands.PROGRAMS.values())


def test_the_extra_named_in_a_message_exists(metadata):
    known = set(metadata["extras_require"])
    for folder in ("keras_vit", "train", "export"):
        for path in ROOT.glob(f"{folder}/**/*.py"):
            text = path.read_text(encoding="utf-8")
            named = re.findall(r"keras-vision-transformers\[([\w,]+)\]", text)
            for extras in [*named, *re.findall(r"_extras\.\w+\([\"'](\w+)[\"']", text)]:
                assert set(extras.split(",")) <= known, f"{path.relative_to(ROOT)} names an unknown extra: {extras}"


def test_every_requirement_of_the_package_has_a_lower_bound(metadata):
    bounds = runpy.run_path(str(ROOT / "tools/lower_bounds.py"))["constraints"]()
    for requirement in metadata["install_requires"]:
        assert bounds[requirement.split(">=")[0]] == requirement.split(">=")[1]


def test_the_tests_that_the_makefile_names_exist():
    named = re.findall(r"tests/[\w/]+\.py", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert named and not [path for path in named if not (ROOT / path).is_file()]


@pytest.mark.slow
def test_wheel_contains_only_the_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    info = f"{wheel.name.split('-')[0]}-{wheel.name.split('-')[1]}.dist-info"
    # site-packages gains only one name: no top-level `train`, `export` or `tests`
    assert {name.split("/")[0] for name in names} == {"keras_vit", info}
    expected = {pathlib.Path("keras_vit", f"_{path.relative_to(ROOT)}") for path in ROOT.glob("train/**/*.py")}
    expected = {path for path in expected if "configs" not in path.parts}
    expected |= {pathlib.Path("keras_vit", f"_{path.relative_to(ROOT)}") for path in ROOT.glob("export/**/*.py")}
    expected |= {"keras_vit" / path.relative_to(ROOT / "train") for path in ROOT.glob("train/configs/*.py")}
    expected |= {path.relative_to(ROOT) for path in ROOT.glob("keras_vit/**/*.py")}
    assert {path.as_posix() for path in expected} == {name for name in names if name.endswith(".py")}
    assets = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("keras_vit/**/assets/*") if path.is_file()}
    for pattern in ("train/*/assets/*", "export/*/assets/*"):
        assets |= {f"keras_vit/_{path.relative_to(ROOT).as_posix()}" for path in ROOT.glob(pattern)}
    assert len(assets) > 5 and assets <= set(names)
    assert any(name.endswith("LICENSE") for name in names) and "keras_vit/py.typed" in names


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with the package as pip installs it, and nothing else."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", target, wheel]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target


@pytest.mark.slow
def test_wheel_works_outside_of_the_checkout(installed, tmp_path):
    code = (
        "import importlib, keras_vit\n"
        "from absl import flags\n"
        "from keras_vit.cli import commands\n"
        f"assert keras_vit.__file__.startswith({str(installed)!r}), keras_vit.__file__\n"
        "keras_vit.ViT_Ti16(image_size=32, classes=3)\n"
        "assert callable(keras_vit.export)\n"  # it was a package of programs
        "shared = set(flags.FLAGS)\n"
        "for name in commands.PROGRAMS:\n"
        "    assert callable(importlib.import_module(commands.module_of(name)).main), name\n"
        "    for flag in set(flags.FLAGS) - shared:  # each program has a separate process elsewhere\n"
        "        delattr(flags.FLAGS, flag)\n"
        "from keras_vit.configs import common\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_help_of_the_installed_command(installed, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, installed / "bin/keras-vit", "export", "--help"]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "keras-vit export --model=" in result.stdout and "--output=" in result.stdout


@pytest.mark.slow
def test_an_installed_command_trains(installed, tmp_path):
    # The recipe is named, not given as a file: there is no checkout here.
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, installed / "bin/keras-vit", "train", "--config=digits", "--workdir=run"]
    sizes = [
        "--config.total_steps=1",
        "--config.model.arguments.hidden_size=8",
        "--config.model.arguments.num_layers=1",
    ]
    result = subprocess.run([*command, *sizes], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "run/model.keras").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("given", ["digits", "digits.py", "train/configs/digits.py"])
def test_recipes_are_found_by_name(given, tmp_path, monkeypatch):
    path = str(ROOT / "train/configs/digits.py")
    monkeypatch.chdir(tmp_path)
    assert recipe_file.find(given) == path
    with pytest.raises(ValueError, match="no_such_recipe"):
        recipe_file.find("no_such_recipe")
    (tmp_path / "digits.py").write_text("")  # a file of the user's comes first
    assert recipe_file.find("digits.py") == "digits.py"


@pytest.mark.slow
def test_import_opens_no_connection_and_no_other_backend():
    # On the JAX backend nothing may import TensorFlow, and nothing may open a connection.
    pytest.importorskip("jax")
    code = (
        "import socket, sys\n"
        "def refuse(*args, **kwargs): raise AssertionError('network at import')\n"
        "socket.socket.connect = refuse\n"
        "import keras\n"
        "before = set(sys.modules)\n"
        "import keras_vit\n"
        "assert keras_vit.__version__\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new & {'tensorflow', 'matplotlib', 'tensorflow_datasets', 'torch', 'timm', 'transformers'}))\n"
    )
    assert run_python(code, KERAS_BACKEND="jax").strip() == "[]"


@pytest.mark.slow
def test_star_import_needs_no_tensorflow():
    pytest.importorskip("jax")
    code = "import sys\nsys.modules['tensorflow'] = None\nfrom keras_vit import *\nprint(ViT_B16.__name__)"
    assert run_python(code, KERAS_BACKEND="jax").strip() == "ViT_B16"


@pytest.mark.slow
def test_import_changes_no_global_state():
    code = (
        "import random, numpy as np, keras\n"
        "random.seed(1); np.random.seed(1)\n"
        "def state(): return (random.getstate(), np.random.get_state()[1].tolist(), keras.config.floatx(),\n"
        "                     keras.config.dtype_policy().name, keras.config.image_data_format())\n"
        "before = state()\n"
        "import keras_vit\n"
        "import sys\n"
        "assert 'keras_vit.layers' in sys.modules, 'saved models need its registered layers'\n"
        "assert 'keras_vit.data' not in sys.modules and keras_vit.data.open_source and 'data' in dir(keras_vit)\n"
        "print(before == state())\n"
    )
    assert run_python(code).strip() == "True"


@pytest.mark.slow
def test_a_missing_backend_names_the_extra(tmp_path):
    # A `tensorflow` that cannot be imported stands for one that is not installed.
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'tensorflow'\", name='tensorflow')"
    )
    result = subprocess.run(
        [sys.executable, "-c", "import keras_vit"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "KERAS_BACKEND": "tensorflow"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert "pip install 'keras-vision-transformers[cpu]'" in result.stderr
