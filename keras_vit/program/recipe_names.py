"""The recipes of this package: where they are, and what each is for."""

import os


def directory() -> str:
    """Return the directory of this package's recipes, which is another one where the package is installed."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "configs")
    return installed if os.path.isdir(installed) else os.path.join(os.path.dirname(package), "train", "configs")


def names() -> list[str]:
    """Return the names of the recipes."""
    files = [file.removesuffix(".py") for file in sorted(os.listdir(directory())) if file.endswith(".py")]
    return [name for name in files if not name.startswith("_") and name != "common"]


def table() -> str:
    """Return the recipes with the first line of each."""
    width, lines = max(map(len, names())) + 2, []
    for name in names():
        with open(os.path.join(directory(), f"{name}.py"), encoding="utf-8") as file:
            lines.append(f"{name:{width}}{file.readline().strip().strip(chr(34)).rstrip('.')}\n")
    return "".join(lines)
