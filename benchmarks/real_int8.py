"""Quantize a trained model to int8 with the quantizers of TFLite, ONNX Runtime and OpenVINO, and compare features.

A quantized file passes if its nearest neighbor has the same class as the nearest neighbor of the float32 model, for 97%
of the images. If a file with all layers in int8 does not pass, the layers of `FLOAT` stay in float32. NNCF, OpenVINO's
quantizer, is not a requirement of this package:
`pip install --no-deps --target=build/wheels nncf==3.4.0 networkx==3.6.1 pydot==4.0.1 tabulate ninja pyparsing`.
"""

import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

import keras_vit
from keras_vit import evaluators, exporting
from keras_vit.exporting import verify
from keras_vit.inference import model_card, open_predictor, openvino, sample_images
from keras_vit.util import formatting

AGREEMENT = 0.97
SIZE = 112  # pixels
CALIBRATION, INDEX, QUERIES = 64, 800, 400  # images
CALLS = 20
# Layers that stay in float32, with parts of the names of their operators. Output projections have the inputs with the
# largest outliers.
FLOAT = {
    "": (),
    "output projections": ("/out_",),
    "output projections, second MLP layers": ("/out_", "Dense_1"),
    "output projections, second MLP layers, blocks 1, 2, 11, 12": (
        *("/out_", "Dense_1"),
        *(f"encoderblock_{index}_" for index in (0, 1, 10, 11)),
    ),
}
NONE = verify.Tolerance(max_difference=float("inf"), top1_agreement=0.0)
Run = Callable[[np.ndarray], np.ndarray]  # from images to features
Store = Callable[..., Any]


def measure(
    weights: str, train_set: evaluators.EvaluationData, test_set: evaluators.EvaluationData, work: str, store: Store
) -> None:
    """Write, compare and time all files."""
    images, labels = evaluators.collect(lambda x: x.reshape(len(x), -1), train_set.batches)
    queries, truth = evaluators.collect(lambda x: x.reshape(len(x), -1), test_set.batches)
    order = np.random.default_rng(0).permutation(len(images))
    images = images.reshape(-1, SIZE, SIZE, 3)[order]
    index, labels, queries = images[:INDEX], labels[order][:INDEX], queries.reshape(-1, SIZE, SIZE, 3)[:QUERIES]
    calibration = images[-CALIBRATION:]
    model = keras_vit.model_from_checkpoint(weights, image_size=SIZE)
    expected = [model.predict(some, verbose=0) for some in (index, queries)]

    def compare(make: Callable[[], tuple[str, Run]]) -> dict[str, Any]:
        path, run = make()
        found = [run(some) for some in (index, queries)]
        quantized, original = (nearest(*features) for features in (found, expected))
        seconds = cpu_seconds(run, queries[:1])
        return {
            "difference": float(np.abs(found[1] - expected[1]).max() / np.abs(expected[1]).max()),
            "neighbor": float((quantized == original).mean()),
            "class": float((labels[quantized] == labels[original]).mean()),
            "megabytes": model_card.size_of(path) / 1e6,
            "milliseconds": 1e3 * seconds,
        }

    for name, make in writers(model, calibration, work).items():
        store("int8", name, make=functools.partial(compare, make))


def writers(model: keras.Model, calibration: np.ndarray, work: str) -> dict[str, Callable[[], tuple[str, Run]]]:
    """Return a function for each file name that writes the file and returns its path and a function to run it."""
    exported = functools.partial(export, model, calibration, work)
    found: dict[str, Callable[[], tuple[str, Run]]] = {
        f"TFLite, {precision}": functools.partial(exported, ".tflite", precision)
        for precision in ("float32", "dynamic_int8", "int8")
    }
    for name, extension, quantize in (("ONNX", ".onnx", quantize_onnx), ("OpenVINO", ".xml", quantize_openvino)):
        found[f"{name}, float32"] = functools.partial(exported, extension)
        for number, (layers, parts) in enumerate(FLOAT.items()):
            target = os.path.join(work, f"int8_{number}{extension}")
            source = os.path.join(work, f"float32{extension}")
            found[f"{name}, int8" + (f"; float32: {layers}" if layers else "")] = functools.partial(
                quantize, source, target, calibration, parts
            )
    return found


def export(
    model: keras.Model, calibration: np.ndarray, work: str, extension: str, precision: str = "float32"
) -> tuple[str, Run]:
    """Export the model as users do, but without a tolerance for quantized files, whose differences are measured."""
    path = os.path.join(work, f"{precision}{extension}")
    options: dict[str, Any] = {} if precision == "float32" else {"precision": precision, "tolerance": NONE}
    if precision == "int8":
        options["calibration"] = sample_images.of_any(pixels(calibration))
    if not os.path.exists(path):
        exporting.export(model, path, images=pixels(calibration), **options)
    return path, open_predictor(path, num_threads=1).features


def pixels(images: np.ndarray) -> np.ndarray:
    """Return the original pixels of normalized images."""
    mean, deviation = keras_vit.models.normalization.IMAGENET
    return np.clip(np.round((images * deviation + mean) * 255), 0, 255).astype(np.uint8)


def quantize_onnx(path: str, target: str, calibration: np.ndarray, float_parts: Sequence[str]) -> tuple[str, Run]:
    """Quantize the linear layers of an ONNX file with ONNX Runtime."""
    import onnx
    import onnxruntime
    from onnxruntime import quantization

    class Images(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.images: Iterator[np.ndarray] = iter(calibration)

        def get_next(self) -> dict[str, np.ndarray] | None:
            image = next(self.images, None)
            return None if image is None else {"images": image[None]}

    names = [node.name for node in onnx.load(path).graph.node]
    quantization.quantize_static(
        path,
        target,
        Images(),
        per_channel=True,
        op_types_to_quantize=["MatMul", "Gemm", "Conv"],
        nodes_to_exclude=[name for name in names if any(part in name for part in float_parts)],
        extra_options={"MatMulConstBOnly": True},  # products of activations lose the most accuracy, as in TFLite files
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(target, options, providers=["CPUExecutionProvider"])
    return target, in_parts(lambda images: session.run(None, {"images": images})[0])


def quantize_openvino(path: str, target: str, calibration: np.ndarray, float_parts: Sequence[str]) -> tuple[str, Run]:
    """Quantize an OpenVINO model with NNCF."""
    core = openvino.import_openvino().Core()
    import nncf

    ignored = nncf.IgnoredScope(patterns=[f".*{part}.*" for part in float_parts], validate=False)
    quantized = nncf.quantize(
        core.read_model(path),
        nncf.Dataset([image[None] for image in calibration]),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(calibration),
        ignored_scope=ignored,
    )
    openvino.import_openvino().save_model(quantized, target, compress_to_fp16=False)
    compiled = core.compile_model(quantized, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1})
    return target, in_parts(lambda images: np.array(compiled([images])[0]))


def in_parts(run: Run) -> Run:
    return lambda images: np.concatenate([run(images[start : start + 16]) for start in range(0, len(images), 16)])


def nearest(index: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Return the index of the nearest neighbor of each query by cosine similarity."""
    index, queries = (some / np.linalg.norm(some, axis=1, keepdims=True) for some in (index, queries))
    return (queries @ index.T).argmax(axis=1)


def cpu_seconds(run: Run, images: np.ndarray) -> float:
    """Return the median processor time of a call on one thread. Other programs affect it less than the elapsed time."""
    run(images)
    times = []
    for _ in range(CALLS):
        start = time.process_time()
        run(images)
        times.append(time.process_time() - start)
    return float(np.median(times))


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the table of the page."""
    header = ["file", "MB:", "same class (%):", "same neighbor (%):", "largest difference:", "ms per image:", ""]
    rows = [
        [
            name,
            f"{result['megabytes']:.1f}",
            f"{100 * result['class']:.1f}",
            f"{100 * result['neighbor']:.1f}",
            f"{result['difference']:.1e}",
            f"{result['milliseconds']:.0f}",
            "passes" if result["class"] >= AGREEMENT else "fails",
        ]
        for name, result in results.items()
    ]
    return f"\n{formatting.markdown_table(header, rows)}\n"
