"""The TFLite interpreter, from whichever package has it."""

import os
import warnings

import tensorflow as tf


def make_interpreter(path: str, num_threads: int | None = None):
    """Opens a TFLite file with built-in operators only.

    Args:
        path: The file.
        num_threads: Threads of the kernels; None for all cores.

    Returns:
        An interpreter: LiteRT's (`ai-edge-litert`) if installed, else TensorFlow's own, which has the same interface.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If it is not a TFLite file.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"No TFLite file {path!r}.")
    with open(path, "rb") as file:
        if file.read(8)[4:] != b"TFL3":
            raise ValueError(f"{path!r} is not a TFLite file: it lacks the identifier TFL3.")
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        Interpreter = tf.lite.Interpreter
    num_threads = num_threads or os.cpu_count()
    with warnings.catch_warnings():
        # TensorFlow announces the move to ai-edge-litert: nothing that a user of the file can act upon.
        warnings.filterwarnings("ignore", message=".*tf.lite.Interpreter is deprecated.*", category=UserWarning)
        return Interpreter(model_path=path, num_threads=num_threads)
