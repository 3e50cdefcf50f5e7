"""Checkpoints that users of Vision Transformers exchange: reading and writing.

`load.py` and `save.py` are the way in. A load has three steps:

1. `recognition.py` opens the file (`formats`), finds its project (`families`), takes the metadata of
   `save_checkpoint` and settles the grid of its position table.
2. `match.py` decides from headers which tensor each variable gets, and `resize.py` adapts those of another size.
3. `match.py` reads every tensor, once, and only then changes the model; `report.py` has the outcome.

`rules.py` says how stored tensors and variables correspond, in both directions; `architecture.py` which model the
shapes of variables show.
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
