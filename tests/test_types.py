"""The types of the public interface, as a user's type checker sees them."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ("keras_vit", "train", "export", "benchmarks", "tools")
SPECIAL = ("__init__", "__call__")  # public, though their names begin with an underscore
USER = """
import keras_vit

model = keras_vit.ViT_B16(image_size=224, classes=3, pooling="gap")
keras_vit.load_checkpoint(model, "file.npz")
keras_vit.ViT_B16(image_size="large")
keras_vit.VisionTransformer(patch_sizes=16)
keras_vit.load_checkpoint(model)
model.fit([0], [1], epochs=3)
print(model.config.hidden_size, keras_vit.BiT_R50x1().config.width_factor)
"""


@pytest.mark.slow
def test_wrong_calls_are_type_errors(tmp_path, monkeypatch):
    api = pytest.importorskip("mypy.api", reason="mypy is in the extra [dev]")
    file = tmp_path / "user.py"
    file.write_text(USER)
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    flags = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports", f"--cache-dir={tmp_path}"]
    output, problems, _ = api.run([*flags, str(file)])
    wrong = sorted(int(line) for line in re.findall(r"user\.py:(\d+): error", output))
    assert wrong == [6, 7, 8], output + problems


def test_the_package_declares_its_types():
    assert (ROOT / "keras_vit" / "py.typed").is_file()


def public_functions(node, prefix=""):
    """Yield the public functions and methods below a node, with their names and whether they are methods."""
    for child in node.body:
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from public_functions(child, f"{child.name}.")
        elif isinstance(child, ast.FunctionDef) and (child.name in SPECIAL or not child.name.startswith("_")):
            static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in child.decorator_list)
            yield prefix + child.name, child, bool(prefix) and not static


def missing_hints(function, is_method):
    """Return the parameters without a type, and "return" if the result has none."""
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs][is_method:]
    given += [variadic for variadic in (arguments.vararg, arguments.kwarg) if variadic is not None]
    missing = [argument.arg for argument in given if argument.annotation is None]
    return missing + ["return"] * (function.returns is None and function.name != "__init__")


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_public_function_has_hints(folder):
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for name, function, is_method in public_functions(ast.parse(path.read_text(encoding="utf-8"))):
            if missing := missing_hints(function, is_method):
                found.append(f"{path.relative_to(ROOT)}: {name}: {', '.join(missing)}")
    assert not found, "\n".join(found)


def test_missing_hints_are_found():
    (function,) = ast.parse("def f(a, b: int, *c, d=1): ...").body
    assert missing_hints(function, is_method=False) == ["a", "d", "c", "return"]
    assert missing_hints(function, is_method=True) == ["d", "c", "return"]
