"""Print the oldest versions that `setup.py` allows, as constraints for pip.

python tools/lower_bounds.py > constraints.txt
pip install --constraint constraints.txt '.[cpu,jax,data,plots,parquet,hub,serving,sweep,onnx,openvino,litert,test]'
"""

import pathlib
import re
import runpy
import sys
from unittest import mock

import setuptools

SETUP = pathlib.Path(__file__).parents[1] / "setup.py"
# Extras that exclude `cpu`, or need newer versions of its packages.
EXCLUDED = ("gpu", "tpu", "plan", "plan-gpu", "interop", "docs", "dev")


def constraints() -> dict[str, str]:
    """Return the lower bound of each package that `cpu` and the other extras install."""
    metadata: dict = {}
    with mock.patch.object(setuptools, "setup", metadata.update):
        runpy.run_path(str(SETUP))
    requirements = list(metadata["install_requires"])
    for extra, packages in metadata["extras_require"].items():
        if extra not in EXCLUDED:
            requirements += packages
    bounds = (re.match(r"([\w.-]+)>=([\w.]+)", requirement) for requirement in requirements)
    return {bound[1]: bound[2] for bound in bounds if bound}


if __name__ == "__main__":
    sys.stdout.write("".join(f"{name}=={version}\n" for name, version in constraints().items()))
