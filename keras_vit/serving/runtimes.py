"""ONNX Runtime and OpenVINO: each opens its file and becomes a function from images to probabilities."""

import contextlib
import os
import sys

import numpy as np

INPUT, OUTPUT = "images", "probabilities"


def import_openvino():
    """OpenVINO, without the reports that it sends to its makers: they would begin with the import.

    Raises:
        ImportError: If it is not installed.
    """
    with _hidden("openvino_telemetry"):
        try:
            import openvino
        except ImportError as error:
            extra = "keras-vision-transformers[openvino]"
            raise ImportError(f"OpenVINO files need OpenVINO: pip install '{extra}'") from error
    return openvino


def open_onnx(path: str, num_threads: int | None = None):
    """Opens an ONNX file on the processor.

    Args:
        path: The file, with the input `images` and the output `probabilities`.
        num_threads: Threads of the kernels; None for all cores.

    Returns:
        A function from images, float32 `[B, H, W, C]`, to probabilities `[B, classes]`; the shape of its input, with
        None for an open batch size; the number of classes.

    Raises:
        ImportError: If ONNX Runtime is not installed.
        FileNotFoundError: If there is no file.
        ValueError: If it cannot be opened, or has other inputs or outputs.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError("ONNX files need ONNX Runtime: pip install 'keras-vision-transformers[onnx]'") from error
    _check_exists(path, path)
    onnxruntime.disable_telemetry_events()  # on in the builds for Windows
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads or os.cpu_count() or 1
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common class
        raise ValueError(f"{path!r} is not an ONNX file that can be run: {error}") from error
    _check_names(path, [node.name for node in session.get_inputs()], [node.name for node in session.get_outputs()])
    shape = [size if isinstance(size, int) else None for size in session.get_inputs()[0].shape]

    def predict(images: np.ndarray) -> np.ndarray:
        return session.run([OUTPUT], {INPUT: images})[0]

    return predict, shape, session.get_outputs()[0].shape[-1]


def open_openvino(path: str, num_threads: int | None = None):
    """Opens an OpenVINO model on the processor.

    Args:
        path: The `.xml` file, with its weights in a `.bin` file beside it.
        num_threads: Threads of the kernels; None for all cores.

    Returns:
        As `open_onnx`.

    Raises:
        ImportError: If OpenVINO is not installed.
        FileNotFoundError: If one of the files is missing.
        ValueError: If they cannot be opened, or have other inputs or outputs.
    """
    openvino = import_openvino()
    for file in (path, weights_beside(path)):
        _check_exists(file, path)
    # Where a processor has bfloat16, OpenVINO computes in it unless it is told not to.
    config = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    if num_threads:
        config["INFERENCE_NUM_THREADS"] = num_threads
    try:
        compiled = openvino.Core().compile_model(path, "CPU", config)
    except RuntimeError as error:
        raise ValueError(f"{path!r} is not an OpenVINO model that can be run: {error}") from error
    inputs, outputs = ([next(iter(port.names), "") for port in ports] for ports in (compiled.inputs, compiled.outputs))
    _check_names(path, inputs, outputs)
    shape = [None if size.is_dynamic else size.get_length() for size in compiled.inputs[0].partial_shape]
    request = compiled.create_infer_request()

    def predict(images: np.ndarray) -> np.ndarray:
        return np.array(request.infer({INPUT: images})[OUTPUT])  # a copy: the next call writes into the same memory

    return predict, shape, compiled.outputs[0].partial_shape[1].get_length()


def weights_beside(path: str) -> str:
    """Where the weights of an OpenVINO model lie: `model.xml` -> `model.bin`."""
    return os.path.splitext(path)[0] + ".bin"


def _check_exists(file, path):
    if not os.path.isfile(file):
        raise FileNotFoundError(f"No file {file!r}, expected for the artefact {path!r}.")


def _check_names(path, inputs, outputs):
    if inputs != [INPUT] or outputs != [OUTPUT]:
        raise ValueError(
            f"{path!r} must have the input {INPUT!r} and the output {OUTPUT!r}. Received: {inputs} and {outputs}."
        )


@contextlib.contextmanager
def _hidden(name):
    """Importing the module fails inside of the block, if it was not imported before."""
    present = name in sys.modules
    if not present:
        sys.modules[name] = None
    try:
        yield
    finally:
        if not present:
            del sys.modules[name]
