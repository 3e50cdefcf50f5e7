"""Vision Transformers in Keras 3.

The import sets `TF_ENABLE_ONEDNN_OPTS=1`, unless the variable is set or TensorFlow is already imported.
"""

import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

from keras_vit.util import onednn

onednn.turn_on()

# Subpackages that need TensorFlow or take long to import. They are imported on first access.
_LAZY = (
    "data",
    "evaluators",
    "exporting",
    "inference",
    "inspection",
    "optim",
    "recipe",
    "runs",
    "tf_serving",
    "training",
)
_FUNCTIONS = {
    "export": "exporting",
    "fine_tune": "training.fine_tune",
    "open_predictor": "inference",
}  # function -> its module


def _runs_program() -> bool:
    """Return whether this process runs a program of the package. Programs import modules after parsing their flags."""
    if sys.argv[:1] == ["-m"]:  # Python imports the packages of the module that it will run
        return sys.orig_argv[sys.orig_argv.index("-m") + 1 :][:1] == ["keras_vit"]
    file = os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    folder, root = os.path.dirname(file), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.path.basename(file) == "keras-vit" or folder in (
        os.path.join(root, "train"),
        os.path.join(root, "export"),
    )


if TYPE_CHECKING:  # type checkers need plain imports
    from keras_vit import data as data
    from keras_vit import evaluators as evaluators
    from keras_vit import exporting as exporting
    from keras_vit import inference as inference
    from keras_vit import inspection as inspection
    from keras_vit import optim as optim
    from keras_vit import recipe as recipe
    from keras_vit import runs as runs
    from keras_vit import tf_serving as tf_serving
    from keras_vit import training as training
    from keras_vit.applications import *  # noqa: F403 - type checkers cannot evaluate `__all__` in `api`
    from keras_vit.exporting.verified_export import export as export  # type: ignore[no-redef]
    from keras_vit.inference import open_predictor as open_predictor
    from keras_vit.training.fine_tune import fine_tune as fine_tune
else:

    def __getattr__(name: str) -> Any:
        if name in _LAZY:
            return importlib.import_module(f"{__name__}.{name}")
        if name in _FUNCTIONS:
            return getattr(importlib.import_module(f"{__name__}.{_FUNCTIONS[name]}"), name)
        is_module = name.startswith("__") or importlib.util.find_spec(f"{__name__}.{name}") is not None
        if not _COMPLETE and not is_module:
            return getattr(importlib.import_module(f"{__name__}.api"), name)
        no_hint = is_module or name.startswith("_")  # importing a module looks for an attribute first
        hint = "" if no_hint else importlib.import_module(f"{__name__}.api").hint(name, __dir__())
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{hint}")


def __dir__() -> list[str]:
    return sorted([*importlib.import_module(f"{__name__}.api").__all__, *_LAZY, *_FUNCTIONS])


_COMPLETE = not _runs_program()
if TYPE_CHECKING or _COMPLETE:
    from keras_vit.api import *  # noqa: F403
    from keras_vit.api import __all__ as __all__

    if importlib.util.find_spec("tensorflow"):  # without TensorFlow, `import *` leaves out what needs it
        __all__ = __dir__()
