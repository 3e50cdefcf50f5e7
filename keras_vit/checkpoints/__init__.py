"""Checkpoints that users of Vision Transformers exchange: reading and writing.

`load.py` and `save.py` are the way in. A load has these steps:

1. `formats` opens the file: bytes to named tensors.
2. `recognition.py` finds the project (`families`), and takes the metadata of `save_checkpoint`; `checkpoint.py` has the
   result, and settles the grid of its position table.
3. `match.py` decides from headers which tensor each variable gets. Then it reads every tensor, once, resizes it
   (`resize.py`), and only then changes the model; `report.py` has the outcome.

`rules.py` binds stored names to variables, in both directions; `architecture.py` infers the model from the shapes of
variables.
"""

from keras_vit.checkpoints.errors import CheckpointError
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
