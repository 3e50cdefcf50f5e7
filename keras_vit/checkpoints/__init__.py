"""Read and write the checkpoints of Vision Transformers and BiT ResNets, in the formats of several projects.

The public functions are in `load.py` and `save.py`. Loading takes three steps:

1. `formats` opens the file and reads its headers: the name, shape and dtype of each tensor.
2. `recognition.py` finds the project that wrote the file (`families`), infers the model, and applies the metadata that
   `save_checkpoint` writes. The result is a `Checkpoint` (`checkpoint.py`). `position_grid.py` determines the grid of
   the checkpoint's position table.
3. `match.py` decides from the headers which tensor is loaded into each variable. Then each tensor is read once and
   resized if necessary (`resize.py`). The model changes only after the last tensor has been read. `report.py` describes
   the outcome.

`rules.py` maps the names of tensors to the names of variables, in both directions. `architecture.py` infers the
arguments of a model from the shapes of its variables. To add a project, begin with `families/__init__.py`.
"""

from keras_vit.checkpoints.formats.tensors import CheckpointError
from keras_vit.checkpoints.load import architecture_of, load_checkpoint, model_from_checkpoint
from keras_vit.checkpoints.report import LoadReport
from keras_vit.checkpoints.save import save_checkpoint

__all__ = [
    "CheckpointError",
    "LoadReport",
    "architecture_of",
    "load_checkpoint",
    "model_from_checkpoint",
    "save_checkpoint",
]
