"""Finding and running of recipe files: the file that `--config` names, and the recipes of this package."""

import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import traceback
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from keras_vit.util import storage

if TYPE_CHECKING:
    from keras_vit.recipe import Recipe


def load(value: str, chosen: Mapping[str, Any] | None = None) -> tuple["Recipe", dict[str, Any], Callable]:
    """Return the recipe of a recipe file's `get_config`, the remaining choices, and the file's function `fit`.

    `value` is a file or the name of a recipe, optionally followed by a colon and an argument: `"my_recipe.py:ViT_B16"`.
    `value` may also be the `config.json` of a run, which contains all fields of the run. If `get_config` has a
    keyword-only argument with the name of a choice, the choice is passed to it. `fit(recipe, change)` returns the final
    recipe. If the file has no `fit`, the final recipe is `change(recipe)`.
    """
    from keras_vit.recipe import Recipe, from_dict  # not before the flags are parsed

    if storage.is_bucket_url(value) and not value.endswith(".json"):
        raise ValueError(f"--config must be a recipe, a file, or the URL of a config.json. Received: {value}.")
    value = storage.fetched(value)
    if value.endswith(".json") and os.path.isfile(value):
        from keras_vit.runs import run_directory

        config = run_directory.read_config(os.path.dirname(value) or ".")
        return from_dict(config["recipe"]), dict(chosen or {}), lambda recipe, change: change(recipe)
    name, colon, argument = value.partition(":")
    path = find(name)
    known: dict[str, Any] = {}
    try:
        module = _import(path)
        get_config = getattr(module, "get_config", None)
        if get_config is None:
            raise ValueError(f"{path} must define the function get_config().")
        signature, arguments = inspect.signature(get_config), [argument] if colon else []
        try:
            signature.bind(*arguments)
        except TypeError as error:
            taken = "no arguments after a colon" if colon else "an argument: --config=FILE:ARGUMENT"
            raise ValueError(f"this recipe takes {taken}.") from error
        parameters = signature.parameters.values()
        own = {parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY}
        known = {name: choice for name, choice in (chosen or {}).items() if name in own}
        recipe = get_config(*arguments, **known)
    except ValueError as error:
        raise ValueError(f"--config={value}: {error}" if colon or not known else str(error)) from error
    except (ImportError, OSError):
        raise
    except Exception as error:  # any error in the file
        raise ValueError(f"{_location(error, path)}: {type(error).__name__}: {error}") from error
    if not isinstance(recipe, Recipe):
        raise ValueError(f"get_config() in {path} must return a keras_vit.recipe.Recipe. It returned: {recipe!r}")
    rest = {name: choice for name, choice in (chosen or {}).items() if name not in own}
    return recipe, rest, getattr(module, "fit", lambda recipe, change: change(recipe))


def find(name: str) -> str:
    """Return the path of a recipe file. `name` is a path or the name of a recipe of this package."""
    if os.path.isfile(name):
        return name
    wanted, known = os.path.basename(name).removesuffix(".py"), names()
    if wanted in known:
        return os.path.join(directory(), f"{wanted}.py")
    from keras_vit.util import checks  # imports NumPy, which the flags do not need

    hint = checks.nearest(wanted, known)
    raise ValueError(
        f"--config: there is no file {name!r} and no recipe of that name.{hint} Recipes: {', '.join(known)}."
    )


def directory() -> str:
    """Return the directory of this package's recipes, which differs between an installed package and a checkout."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "configs")
    return installed if os.path.isdir(installed) else os.path.join(os.path.dirname(package), "train", "configs")


def names() -> list[str]:
    """Return the names of the recipes."""
    files = [file.removesuffix(".py") for file in sorted(os.listdir(directory())) if file.endswith(".py")]
    return [name for name in files if not name.startswith("_") and name != "common"]


def table() -> str:
    """Return a table of the recipes with the first line of each file."""
    width, lines = max(map(len, names())) + 2, []
    for name in names():
        with open(os.path.join(directory(), f"{name}.py"), encoding="utf-8") as file:
            lines.append(f"{name:{width}}{file.readline().strip().strip(chr(34)).rstrip('.')}\n")
    return "".join(lines)


def _import(path: str) -> types.ModuleType:
    """Run a recipe file as a module, within its package if it belongs to a package."""
    path = os.path.abspath(path)
    parts, directory = [os.path.basename(path).removesuffix(".py")], os.path.dirname(path)
    while os.path.isfile(os.path.join(directory, "__init__.py")):
        parts.insert(0, os.path.basename(directory))
        directory = os.path.dirname(directory)
    name = ".".join(parts) if len(parts) > 1 else "recipe_file"
    if len(parts) > 1:
        if directory not in map(os.path.abspath, sys.path):
            sys.path.append(directory)
        importlib.import_module(name.rpartition(".")[0])  # for its relative imports
    loader = importlib.machinery.SourceFileLoader(name, path)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _location(error: Exception, path: str) -> str:
    """Return `file:line` of the line in a recipe file that led to an error."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == os.path.abspath(path)]
    return f"{path}:{frames[-1].lineno}" if frames else path
