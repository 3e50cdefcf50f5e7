"""What a model costs, counted from its architecture: parameters, multiply-adds, and numbers kept for the gradient.

Multiply-adds are those of convolutions and matrix products, as is usual; norms, softmax and activation functions add
about a hundredth to that. One multiply-add is two floating-point operations.
"""

import dataclasses

from keras_vit import models

# Memory of an image in a step of TensorFlow that is not compiled, as a multiple of its activations, at most. Measured
# on a CPU at 224 pixels: in float32 1.2 for a ViT, 1.4 for a hybrid, 1.5 for a BiT; in bfloat16, whose sums are in
# float32, 1.7 to 1.8 for all three.
UNFUSED = 1.8


@dataclasses.dataclass(frozen=True)
class Cost:
    """Costs of a model.

    Attributes:
        parameters: Number of weights.
        macs: Multiply-adds of the forward pass of an image, all tokens counted, as in the paper. Where only the class
            token is read, the last block computes less: 7 % of a model of twelve blocks.
        activations: Numbers that the backward pass of an image needs from the forward pass, each once: the inputs of
            products, norms, poolings and of GELU (in its tanh form), attention weights, and masks of dropout, less what
            the backward passes of `keras_vit.layers.kernels` recompute. With `remat` or attention in chunks,
            what is computed again counts for one block and not for all. A ViT and a hybrid keep exactly these under
            TensorFlow, a BiT that is not compiled padded copies, too. What a step holds for a while comes on top: it
            takes up to `UNFUSED` times as much where no compiler fuses operations.
        tokens: Length of the transformer's sequence; 0 without one.
    """

    parameters: int
    macs: int
    activations: int
    tokens: int = 0

    @property
    def training_flops(self) -> int:
        """Floating-point operations of forward and backward pass of an image: three times the forward pass."""
        return 6 * self.macs


def of_variant(name: str, **arguments) -> Cost:
    """Counts the costs of a named model without building it.

    Args:
        name: One of `keras_vit.list_models()`.
        **arguments: Those of `keras_vit.create_model`; the `image_size` must be given or be left at its default.
    """
    if name in models.VIT:
        return _vit({**_VIT_DEFAULTS, **dataclasses.asdict(models.VIT[name]), **arguments})
    if name in models.BIT:
        return _bit({**_BIT_DEFAULTS, **dataclasses.asdict(models.BIT[name]), **arguments})
    raise ValueError(f"There is no model named {name!r}. Known names: {', '.join(models.list_models())}.")


def of_model(model) -> Cost:
    """Counts the costs of a `VisionTransformer` or `BiTResNet` for images of its own size."""
    config = model.get_config()
    return _bit(config) if isinstance(model, models.BiTResNet) else _vit(config)


_COMMON = {"image_size": 224, "channels": 3, "classes": 1000, "include_top": True}
_BIT_DEFAULTS = _COMMON
_VIT_DEFAULTS = {
    **_COMMON,
    "resnet_blocks": None,
    "pooling": "token",
    "representation_size": None,
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "position_embedding": "learned",
    "position_embedding_at": "input",
    "num_registers": 0,
    "class_token": None,
    "distillation_token": False,
    "qkv_bias": True,
    "layer_scale": None,
    "norm_after_pooling": False,
    "remat": "none",
    "attention_chunk_size": None,
}


class _Tally:
    """Sums over the operations of a network, in the order in which an image passes them."""

    def __init__(self):
        self.parameters = self.macs = self.activations = 0

    def dense(self, rows: int, inputs: int, outputs: int, bias: bool = True, parameters: bool = True):
        """A matrix product of `rows` vectors."""
        self.parameters += (inputs * outputs + bias * outputs) if parameters else 0
        self.macs += rows * inputs * outputs
        self.activations += rows * inputs

    def conv(self, size, kernel: int, inputs: int, outputs: int, strides: int = 1, bias: bool = False):
        """A convolution of a `[h, w, inputs]` map; returns the size of the result."""
        new_size = tuple(-(-side // strides) for side in size)
        self.parameters += kernel * kernel * inputs * outputs + bias * outputs
        self.macs += new_size[0] * new_size[1] * kernel * kernel * inputs * outputs
        self.activations += size[0] * size[1] * inputs
        return new_size

    def norm(self, rows: int, width: int):
        """A norm with scale and bias."""
        self.parameters += 2 * width
        self.activations += rows * width

    def elementwise(self, count: int):
        """A function whose gradient needs its input."""
        self.activations += count

    def dropout(self, count: int):
        """The mask of a dropout: a byte for each value, half of a 16-bit number."""
        self.activations += count // 2

    def cost(self, tokens: int = 0) -> Cost:
        return Cost(self.parameters, self.macs, self.activations, tokens)


def _vit(a: dict) -> Cost:
    tally = _Tally()
    size, channels = _pair(a["image_size"] or 224), a["channels"]
    if a["resnet_blocks"] is not None:
        size, channels = _hybrid_stem(tally, size, channels, a["resnet_blocks"])
    patch, width = _pair(a["patch_size"]), a["hidden_size"]
    grid = (size[0] // patch[0], size[1] // patch[1])
    patches = grid[0] * grid[1]
    tally.dense(patches, patch[0] * patch[1] * channels, width)

    pooling = a["pooling"]
    has_class_token = pooling in ("token", None) if a["class_token"] is None else a["class_token"]
    prefix = int(has_class_token) + int(a["distillation_token"])
    tokens = patches + prefix + a["num_registers"]
    tally.parameters += (prefix + a["num_registers"]) * width
    tally.parameters += _positions(a, grid, prefix)
    if a["dropout_rate"]:
        tally.dropout(tokens * width)

    blocks = _Tally()
    for _ in range(a["num_layers"]):
        _block(blocks, a, tokens)
    if a["remat"] == "blocks" and a["num_layers"]:  # the input of each block, and one block while it is recomputed
        blocks.activations = a["num_layers"] * tokens * width + blocks.activations // a["num_layers"]
    if a["num_layers"] and _in_chunks(a, tokens):  # one chunk's weights while they are there
        blocks.activations += a["num_heads"] * a["attention_chunk_size"] * tokens
    for name in ("parameters", "macs", "activations"):
        setattr(tally, name, getattr(tally, name) + getattr(blocks, name))

    tally.norm(1 if a["norm_after_pooling"] else tokens, width)
    if pooling == "map":
        _map_head(tally, a, tokens)
    _vit_head(tally, a, 1 if pooling is not None else tokens)
    return tally.cost(tokens)


def _block(tally: _Tally, a: dict, tokens: int):
    """Save 8 vectors of D and 2 of the MLP's width per token, and the attention weights."""
    width = a["hidden_size"]
    tally.norm(tokens, width)
    for _ in ("query", "key", "value"):
        tally.dense(tokens, width, width, bias=a["qkv_bias"])
    tally.activations -= 2 * tokens * width  # the three share their input
    _attention(tally, a, tokens, tokens)
    tally.dense(tokens, width, width)
    if a["position_embedding"] == "relative":
        offsets = 2 * tokens - 1
        tally.parameters += offsets * (width // a["num_heads"])
        tally.macs += tokens * offsets * width
    tally.norm(tokens, width)
    tally.dense(tokens, width, a["mlp_dim"])
    tally.elementwise(tokens * a["mlp_dim"])  # GELU
    tally.dense(tokens, a["mlp_dim"], width)
    if a["attention_dropout_rate"]:
        weights = a["num_heads"] * tokens * tokens
        tally.elementwise(weights)  # as they are multiplied with the values; softmax needs them whole
        tally.dropout(weights)
    if a["dropout_rate"]:
        tally.dropout(tokens * (2 * width + a["mlp_dim"]))
    if a["layer_scale"] is not None:
        tally.parameters += 2 * width
        tally.elementwise(2 * tokens * width)


def _attention(tally: _Tally, a: dict, queries: int, keys: int):
    tally.macs += 2 * queries * keys * a["hidden_size"]
    tally.activations += (queries + 2 * keys) * a["hidden_size"]
    if not _in_chunks(a, queries):  # else the backward pass computes the weights again
        tally.activations += a["num_heads"] * queries * keys


def _in_chunks(a: dict, queries: int) -> bool:
    return a["attention_chunk_size"] is not None and queries > a["attention_chunk_size"]


def _map_head(tally: _Tally, a: dict, tokens: int):
    width = a["hidden_size"]
    tally.parameters += width
    tally.dense(1, width, width)
    tally.dense(tokens, width, width)
    tally.dense(tokens, width, width)
    tally.activations -= tokens * width
    _attention(tally, a, 1, tokens)
    tally.dense(1, width, width)
    tally.norm(1, width)
    tally.dense(1, width, a["mlp_dim"])
    tally.elementwise(a["mlp_dim"])
    tally.dense(1, a["mlp_dim"], width)


def _vit_head(tally: _Tally, a: dict, rows: int):
    width, heads = a["hidden_size"], 1 + int(a["distillation_token"])
    if a["representation_size"] is not None:
        for head in range(heads):
            tally.dense(rows, width, a["representation_size"], parameters=head == 0)
        width = a["representation_size"]
    if a["include_top"]:
        for _ in range(heads):
            tally.dense(rows, width, a["classes"])


def _positions(a: dict, grid: tuple[int, int], prefix: int) -> int:
    """Parameters of the position embeddings that are added to tokens."""
    width, times = a["hidden_size"], 1
    if a["position_embedding_at"] == "every_layer":
        times = a["num_layers"]
    learned = {
        "learned": (grid[0] * grid[1] + prefix) * width,
        "learned2d": (grid[0] + grid[1]) * (width // 2) + prefix * width,
    }
    return times * learned.get(a["position_embedding"], 0)


def _hybrid_stem(tally: _Tally, size, channels: int, blocks):
    size = tally.conv(size, 7, channels, 64, 2)
    channels = 64
    tally.norm(size[0] * size[1], channels)
    tally.elementwise(size[0] * size[1] * channels)  # the pooling's
    size = tuple(-(-side // 2) for side in size)
    for stage, units in enumerate(blocks):
        features = 64 * 2**stage
        for unit in range(units):
            strides = 2 if stage and not unit else 1
            if channels != 4 * features or strides > 1:
                projected = tally.conv(size, 1, channels, 4 * features, strides)
                tally.norm(projected[0] * projected[1], 4 * features)
                tally.activations -= size[0] * size[1] * channels  # the input is that of the first convolution
            tally.conv(size, 1, channels, features)
            tally.norm(size[0] * size[1], features)
            size = tally.conv(size, 3, features, features, strides)
            tally.norm(size[0] * size[1], features)
            tally.conv(size, 1, features, 4 * features)
            tally.norm(size[0] * size[1], 4 * features)
            channels = 4 * features
    return size, channels


def _bit(a: dict) -> Cost:
    tally = _Tally()
    width = 64 * a["width_factor"]
    size = tally.conv(_pair(a["image_size"] or 224), 7, a["channels"], width, 2)
    channels = width
    tally.elementwise(size[0] * size[1] * channels)  # the pooling's
    size = tuple(-(-side // 2) for side in size)
    for stage, units in enumerate(a["block_sizes"]):
        features = width * 2**stage
        for unit in range(units):
            strides = 2 if stage and not unit else 1
            tally.norm(size[0] * size[1], channels)
            if channels != 4 * features or strides > 1:
                tally.conv(size, 1, channels, 4 * features, strides)
                tally.activations -= size[0] * size[1] * channels
            tally.conv(size, 1, channels, features)
            tally.norm(size[0] * size[1], features)
            size = tally.conv(size, 3, features, features, strides)
            tally.norm(size[0] * size[1], features)
            tally.conv(size, 1, features, 4 * features)
            channels = 4 * features
    tally.norm(size[0] * size[1], channels)
    if a["include_top"]:
        tally.dense(1, channels, a["classes"])
    return tally.cost()


def _pair(value) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)
