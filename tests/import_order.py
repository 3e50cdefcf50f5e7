"""The one-way import order of the project, as a checker over source trees. `test_import_order.py` applies it."""

import ast
import pathlib
import sys

# A module may import what stands before it. The package itself (`keras_vit/__init__.py`) comes last.
ORDER = (
    "version",
    "util",
    "zoo",
    "layers",
    "outputs",
    "models",
    "checkpoints",
    "adaptation",
    "applications",
    "api",
    "optim",
    "data",
    "tasks",
    "recipe",
    "runs",
    "inference",
    "inspection",
    "evaluators",
    "exporting",
    "training",
    "tf_serving",
    "cli",
    "__main__",
)
PROGRAMS = ("train", "export")  # folders; a program imports keras_vit.* and its own parts, and no other program
WITH_TENSORFLOW = {
    "util",
    "data",
    "tasks",  # entries of batches in tf.data
    "runs",
    "inference",
    "exporting",
    "training",
    *PROGRAMS,
}
# Keras has no gradient of a function with respect to tensors, and no rounding that XLA keeps: these ask the backend
# that runs, inside of a function; nor has it a loop whose rounds follow each other, or a way to say what comes later.
BACKEND_SWITCHES = {
    "keras_vit.inspection.relevance",
    "keras_vit.inspection.examples",
    "keras_vit.optim.optimizers",
    "keras_vit.layers.kernels.chunked_attention",
    "keras_vit.layers.kernels.fused_attention",
    "keras_vit.layers.kernels.gelu",
    "keras_vit.layers.kernels.feed_forward",
    "keras_vit.layers.kernels.one_pass",
    "keras_vit.models.inputs",
}
# What runs only on JAX may import it at the top; nothing else imports this package at the top.
JAX_PACKAGE = "keras_vit.training.jax"
REQUIRED = {"keras", "numpy", "absl", "filelock", "h5py", "ml_dtypes", "safetensors", "scipy", "threadpoolctl"}
OPTIONAL = {
    "matplotlib",
    "tensorflow_datasets",
    "array_record",
    "ray",
    "huggingface_hub",
    "jax",
    "jaxlib",
    "torch",
    "timm",
    "transformers",
    "keras_hub",
    "vit_keras",
    "google",  # protobuf, which comes with TensorFlow
    "flatbuffers",  # the same
    "tf2onnx",
    "starlette",
    "uvicorn",
    "tensorflow_serving",
    "ai_edge_litert",
    "onnx",
    "onnxruntime",
    "openvino",
    "libtpu",
    "sklearn",
    "PIL",
    "simplejpeg",
    "pyarrow",
    "tqdm",
    "requests",
    "psutil",
    "fsspec",
    "optuna",
    "orbax",
    "etils",  # paths of Orbax
}


def check(root):
    """List the wrong imports under `root`, one sentence each, with file and line."""
    root = pathlib.Path(root)
    problems = []
    users = {}  # optional dependency -> the modules that import it
    for path in source_files(root):
        module = module_name(root, path)
        unit = unit_of(module)
        if unit not in (*ORDER, "keras_vit", *PROGRAMS):
            problems.append(
                f"{path.relative_to(root)}: {unit!r} has no place in the import order (tests/import_order.py)"
            )
            continue
        for target, line, nested, relative in imports(root, path, module):
            where = f"{path.relative_to(root)}:{line}"
            top = target.split(".")[0]
            if f"{target}.".startswith(f"{JAX_PACKAGE}.") and not (
                nested or f"{module}.".startswith(f"{JAX_PACKAGE}.")
            ):
                problems.append(f"{where}: imports {target} at the top, which needs JAX; import it where it is used")
            if relative and is_part(root, module, target):  # an absolute import fails in an installed package
                continue
            if top == "keras_vit" or top in PROGRAMS:
                problems.extend(f"{where}: {problem}" for problem in own_import(unit, target))
            elif may_use_backend(module, top, nested):
                continue
            elif top == "tensorflow":
                if unit not in WITH_TENSORFLOW:
                    problems.append(f"{where}: imports TensorFlow, which only {sorted(WITH_TENSORFLOW)} may")
            elif top in OPTIONAL:
                users.setdefault(top, {})[module] = where
                if not nested:
                    problems.append(f"{where}: imports the optional {top!r} at the top; import it where it is used")
            elif top not in REQUIRED and top not in sys.stdlib_module_names:
                problems.append(f"{where}: imports {top!r}, which setup.py does not require")
    for name, modules in users.items():
        if len(modules) > 1:
            problems.append(f"the optional {name!r} is imported in more than one module: {sorted(modules.values())}")
    return problems


def is_part(root, module, target):
    """Whether a program, or a part of a program, imports a part in its folder. Recipes import only recipes."""
    folder = target.split(".")[0]
    if folder not in PROGRAMS or module.split(".")[0] != folder:
        return False
    if "train.configs" in (module.rpartition(".")[0], target.rpartition(".")[0]):
        return module.rpartition(".")[0] == target.rpartition(".")[0] or target == module.rpartition(".")[0]
    path = root.joinpath(*target.split(".")).with_suffix(".py")
    return target != folder and not (path.exists() and "__main__" in path.read_text(encoding="utf-8"))


def may_use_backend(module, top, nested):
    """Whether a module is one of those that may import a backend of Keras beside what their part of the project may."""
    if top == "jax" and f"{module}.".startswith(f"{JAX_PACKAGE}."):
        return True
    return top in ("tensorflow", "jax") and nested and module in BACKEND_SWITCHES


def source_files(root):
    """Every Python file of the package and the program folders."""
    return [path for folder in ("keras_vit", *PROGRAMS) for path in sorted((root / folder).rglob("*.py"))]


def module_name(root, path):
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(module):
    """The part of the project a module belongs to: "layers" for keras_vit.layers.patches, "train" for train.main."""
    parts = module.split(".")
    return parts[1] if parts[0] == "keras_vit" and len(parts) > 1 else parts[0]


def own_import(unit, target):
    """Problems of a module of `unit` importing the project's own `target`."""
    if unit in PROGRAMS:
        if target.split(".")[0] in PROGRAMS:
            # Nor would it work: installed, the programs are keras_vit.train.* and keras_vit.export.*
            yield f"a program imports another program, {target}; what both need belongs into keras_vit"
        return
    if target.split(".")[0] in PROGRAMS:
        yield f"the library imports a program, {target}"
        return
    target_unit = unit_of(target)
    if unit == "keras_vit" or target_unit == unit:
        return
    if target_unit == "keras_vit":
        yield f"imports the package keras_vit as a whole, which stands above {unit!r}; import the module it needs"
    elif target_unit not in ORDER:
        yield f"imports {target}, which has no place in the import order"
    elif ORDER.index(target_unit) > ORDER.index(unit):
        yield f"upward import of {target_unit!r} in {unit!r}"


def imports(root, path, module):
    """Yields (imported module, line, inside a function, relative import) for each import of a file."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def visit(node, nested):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, nested, False
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield (name if is_module(root, name) else base), node.lineno, nested, node.level > 0
        elif isinstance(node, ast.Call) and called_name(node.func) in ("import_module", "__import__"):
            if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                yield node.args[0].value, node.lineno, nested, False
        elif isinstance(node, ast.If) and called_name(node.test) == "TYPE_CHECKING":
            nested = True  # for type checkers only, never executed, and in order all the same
        inside = nested or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(ast.parse(path.read_text(encoding="utf-8"), str(path)), False)


def called_name(node):
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def is_module(root, name):
    path = root.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()
