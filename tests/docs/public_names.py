"""The public names of the package: those in `__all__` of `keras_vit`, of its subpackages and of their modules."""

import importlib
import types

from tests.docs import pages

FOLDER = pages.ROOT / "keras_vit"


def subpackages() -> list[str]:
    """Return the names of the public subpackages and modules: those with `__all__`, without importing them."""
    found = {path.parent.name: path for path in FOLDER.glob("*/__init__.py")}
    found |= {path.stem: path for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "api")}
    return sorted(name for name, path in found.items() if "\n__all__ = " in path.read_text(encoding="utf-8"))


# `api` has the names of `keras_vit`.
PACKAGES = ["keras_vit", *(f"keras_vit.{name}" for name in subpackages()), "keras_vit.inspection.plots"]


def names_of(package: str) -> list[str]:
    """Return the public names of a package or module. Those of `keras_vit` are without its subpackages."""
    module = importlib.import_module(package)
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == package]
    names = getattr(module, "__all__", [name for name in own if not name.startswith("_")])
    modules = {path.stem for path in FOLDER.iterdir()} if package == "keras_vit" else ()
    return [name for name in names if name not in modules]


def objects_of(package: str) -> dict[str, object]:
    """Return the functions and classes of a package by name, with those of its public modules."""
    found = {}
    for name in names_of(package):
        value = getattr(importlib.import_module(package), name)
        if isinstance(value, types.ModuleType):
            found |= {f"{name}.{inner}": item for inner, item in objects_of(value.__name__).items()}
        elif callable(value):
            found[name] = value
    return found
