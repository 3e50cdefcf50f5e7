"""Every use of Keras' private API. Keras has no public way for these; the nightly tests run with its newest version."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras


def all_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return a layer and all layers in it, at any depth. A layer comes before its sublayers."""
    return layer._flatten_layers()


def direct_sublayers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return the layers that a layer itself contains."""
    return layer._flatten_layers(recursive=False, include_self=False)


def own_trainable_variables(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the variables that a layer created to be trained, without those of its sublayers, frozen or not."""
    return layer._trainable_variables


def stored_kernel(layer: keras.layers.Layer) -> keras.Variable:
    """Return the kernel of a dense layer without the update of LoRA, or the stored integers of a quantized kernel."""
    return layer._kernel


@contextlib.contextmanager
def adding_variables(layer: keras.layers.Layer) -> Iterator[None]:
    """Let a built layer create variables within a `with` block."""
    layer._tracker.unlock()
    try:
        yield
    finally:
        layer._tracker.lock()


def remove_variable(layer: keras.layers.Layer, variable: keras.Variable) -> None:
    """Remove a variable from a built layer. `del` would run the garbage collector for a quarter of a second."""
    layer._untrack_variable(variable)


def run_functional(model: keras.Model, inputs: list[Any], call: Callable[..., Any]) -> Any:
    """Run a functional model with `call(layer, *args, **kwargs)` in place of each layer's call, also on tensors."""
    return model._run_through_graph(inputs, call_fn=call)


def calls(model: keras.Model) -> list[Any]:
    """Return the calls of the layers of a functional model in the order of execution.

    Each call is a Keras node with the layer in `operation`, its symbolic arguments in `arguments` (the tensors also in
    `input_tensors`), and its symbolic results in `outputs`.
    """
    nodes = model._nodes_by_depth
    return [node for depth in sorted(nodes, reverse=True) for node in nodes[depth] if not node.is_input]
