"""Reading and writing the checkpoints that users of Vision Transformers exchange."""

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.load import architecture_of, load_checkpoint, model_from_checkpoint
from keras_vit.checkpoints.plan import LoadReport
from keras_vit.checkpoints.save import save_checkpoint

__all__ = [
    "CheckpointError",
    "LoadReport",
    "architecture_of",
    "load_checkpoint",
    "model_from_checkpoint",
    "save_checkpoint",
]
