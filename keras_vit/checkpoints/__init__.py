"""Checkpoints that users of Vision Transformers exchange: reading and writing.

`load.py` and `save.py` are the way in. A load has three steps:

1. `recognition.py` opens the file (`formats`), finds its project (`families`), takes what its note states (`note.py`)
   and settles the grid of its position table (`grid.py`).
2. `match.py` decides what each variable of the model gets, and `resize.py` adapts what has another size.
3. `assign.py` reads every tensor, and only then changes the model.

`rules.py` says how stored tensors and variables correspond, in both directions; `architecture.py` which model the
shapes of variables show; `facts.py` what agrees and what differs.
"""

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.load import architecture_of, load_checkpoint, model_from_checkpoint
from keras_vit.checkpoints.match import LoadReport
from keras_vit.checkpoints.save import save_checkpoint

__all__ = [
    "CheckpointError",
    "LoadReport",
    "architecture_of",
    "load_checkpoint",
    "model_from_checkpoint",
    "save_checkpoint",
]
