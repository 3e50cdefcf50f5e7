"""Checkpoints that users of Vision Transformers exchange: reading and writing.

`load.py` is the way in: open the file (`formats`), recognize its project (`families`), match its tensors with the model
(`match.py`), adapt them (`resize.py`), assign them.
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
