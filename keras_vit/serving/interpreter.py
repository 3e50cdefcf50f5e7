"""The TFLite interpreter, from whichever package has it."""

import contextlib
import os
import warnings

import tensorflow as tf


def make_interpreter(path: str, num_threads: int | None = None, keep_all: bool = False):
    """Opens a TFLite file with built-in operators only.

    Args:
        path: The file.
        num_threads: Threads of the kernels; None for all cores.
        keep_all: Whether intermediate results can be read after a call; slow.

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
        from ai_edge_litert import interpreter as package
    except ImportError:
        Interpreter, resolvers = tf.lite.Interpreter, tf.lite.experimental.OpResolverType
    else:
        Interpreter, resolvers = package.Interpreter, package.OpResolverType
    options = {}
    if keep_all:
        # XNNPACK would keep what happens inside of it to itself.
        options["experimental_op_resolver_type"] = resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        options["experimental_preserve_all_tensors"] = True
    num_threads = num_threads or os.cpu_count()
    with without_deprecation():
        return Interpreter(model_path=path, num_threads=num_threads, **options)


@contextlib.contextmanager
def without_deprecation():
    """Keeps TensorFlow from announcing its interpreter's end, which a user of a file cannot act upon."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*tf.lite.Interpreter is deprecated.*", category=UserWarning)
        yield
