"""Rows of docs/benchmarks.md: the measured work, and the systems that do it."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks import interleaved
from benchmarks.environments import ENVIRONMENTS

PACKAGE = "keras_vit"
SIZES = (224, 512, 768, 1024, 1536)  # pixels: 196 to 9,216 patches of 16


@dataclasses.dataclass(frozen=True)
class Row:
    """A measurement.

    Attributes:
        name: Name of the row for `--rows` and `ROWS`.
        title: Heading of its table.
        work: Fields of `workers/worker.py`'s `Work`.
        peers: Other packages that do the same work.
        variants: Additional runs of this package by name, with their changes of `work`. The key `"system"` selects
            another function of the worker. A function for another package runs in the environment of that package.
        worker: File name of the script in `workers/`.
        rounds: Steps per system.
        together: Whether the steps of the systems are interleaved. If False, they run one after the other, because they
            do not fit into memory together.
        environment: Environment variables of the processes.
        system: This package's function in the worker; None if only the variants run.
        home: Name of this package's environment.
        files: Width and number of the JPEG files that the row reads (see `with_files`).
    """

    name: str
    title: str
    work: Mapping = dataclasses.field(default_factory=dict)
    peers: tuple[str, ...] = ()
    variants: Mapping[str, Mapping] = dataclasses.field(default_factory=dict)
    worker: str = "models.py"
    rounds: int = 5
    together: bool = True
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    system: str | None = PACKAGE
    home: str = PACKAGE
    files: tuple[int, int] | None = None

    def with_files(self, directory: Path) -> "Row":
        """Return the row with its JPEG files, which are created in `directory` if they do not exist."""
        if self.files is None:
            return self
        from benchmarks import jpeg_files

        width, count = self.files
        folder = jpeg_files.make(directory / f"jpeg_{width}", width, count)
        return dataclasses.replace(self, work={**self.work, "folder": str(folder)})

    def systems(self, python_of: Callable[[str], str], root: Path = interleaved.ROOT) -> list[interleaved.System]:
        """Return the systems to run, with the interpreter of each environment, and this package's checkout `root`."""
        variants = {self.system: {"system": self.system}} if self.system else {}
        systems = []
        for name, changes in {**variants, **self.variants}.items():
            changes = dict(changes)
            function = changes.pop("system", PACKAGE)
            is_peer = function in ENVIRONMENTS and not function.startswith(PACKAGE)
            python = python_of(function if is_peer else self.home)
            systems.append(self._system(name, python, function, changes, None if is_peer else root))
        return systems + [self._system(name, python_of(name), name, {}, None) for name in self.peers]

    def machine(self, python_of: Callable[[str], str]) -> interleaved.System | None:
        """Return the system that measures the rates of the machine, or None if the operations are unknown."""
        if self.operations(self.system or next(iter(self.variants))) is None:
            return None
        fields = {name: self.work[name] for name in ("model", "batch", "image_size") if name in self.work}
        if fields.get("model") not in ("ViT-Ti/16", "ViT-S/16", "ViT-B/16"):
            fields.pop("model", None)  # for a ResNet, measure the products of ViT-B/16
        script = interleaved.WORKERS / "machine.py"
        return interleaved.worker("machine", script, python=python_of("timm"), work=fields, root=None)

    def operations(self, system: str) -> float | None:
        """Return the operations of a step, by the planner, for all systems of a row; None if they are unknown."""
        work = {**self.work, **self.variants.get(system, {})}
        times = {"inference": 2, "training": 6}.get(work.get("task", "inference"))
        if self.worker not in ("models.py", "one_image.py", "saved_model.py", "tflite.py") or times is None:
            return None
        from keras_vit.training.planning import cost

        arguments = {name: value for name, value in work.get("arguments", {}).items() if name != "remat"}
        counted = cost.of_variant(
            work.get("model", "ViT-B/16"), classes=1000, image_size=work.get("image_size", 224), **arguments
        )
        return times * counted.macs * work.get("batch", 1)

    def _system(self, name, python, function, changes, root):
        script = interleaved.WORKERS / self.worker
        work = {**self.work, **changes}
        return interleaved.worker(
            name, script, python=python, function=function, work=work, root=root, environment=self.environment
        )


def _models() -> Iterator[Row]:
    """Yield rows of inference and training steps."""
    peers = {"float32": ("keras_hub", "vit_keras", "timm", "transformers"), "bfloat16": ("keras_hub", "timm")}
    for precision in ("float32", "bfloat16"):
        for batch, rounds in ((16, 5), (1, 25)):
            yield Row(
                f"inference-{batch}-{precision}",
                f"ViT-B/16 inference, batch {batch}, {precision}",
                {"task": "inference", "batch": batch, "precision": precision},
                peers=peers[precision],
                rounds=rounds,
            )
        yield Row(
            f"training-{precision}",
            f"ViT-B/16 training step, batch 8, {precision}",
            {"task": "training", "batch": 8, "precision": precision},
            peers=("keras_hub", "timm"),
            variants={"keras_vit remat": {"arguments": {"remat": "blocks"}}},
            rounds=8,
        )
    tasks = {"supervised": "classification", "MAE": "mae", "masked patch prediction": "masked_patch"}
    yield Row(
        "pretraining-float32",
        "ViT-B/16 step of pre-training without labels, batch 8, float32",
        {"model": "ViT-B/16", "batch": 8},
        variants={name: {"system": f"{PACKAGE}_tasks", "task": task} for name, task in tasks.items()},
        rounds=8,
        system=None,
    )
    for name, model in (("r50", "R50+ViT-B/16"), ("bit", "BiT-R50x1")):
        yield Row(
            f"inference-{name}",
            f"{model} inference, batch 8, float32",
            {"task": "inference", "model": model, "batch": 8},
            peers=("timm",),
            rounds=7,
        )
    yield Row(
        "inference-16-compiled",
        "ViT-B/16 inference, batch 16, bfloat16, compared with torch.compile",
        {"task": "inference", "batch": 16, "precision": "bfloat16"},
        peers=("timm_compiled",),
    )


def _adaptation() -> Iterator[Row]:
    """Yield rows of fine-tuning all weights and of LoRA."""
    dinov2 = {"layer_scale": 1.0, "activation": "gelu", "pooling": "token+gap"}
    for name, model, arguments in (("vit", "ViT-B/16", {"activation": "gelu"}), ("dinov2", "ViT-S/14", dinov2)):
        yield Row(
            f"adaptation-{name}",
            f"{'DINOv2-S' if name == 'dinov2' else model} fine-tuning step, batch 8, float32",
            {"task": "all", "model": model, "batch": 8, "arguments": arguments},
            peers=("transformers", "peft"),
            variants={"keras_vit LoRA": {"task": "lora(rank=8, alpha=16, layers='query|value')"}},
            worker="adaptation.py",
            rounds=5,
        )


def _kernels() -> Iterator[Row]:
    """Yield rows of training steps by operation, and of steps in which the plain formula replaces one kernel."""
    for precision in ("float32", "bfloat16"):
        yield Row(
            f"profile-training-{precision}",
            f"ViT-S/16 training step, batch 8, {precision}, on one thread: share of the operations",
            {"task": "training", "model": "ViT-S/16", "batch": 8, "precision": precision},
            worker="step_profile.py",
            rounds=3,
        )
        for name, model, batch, kernels in (
            ("vit", "ViT-S/16", 8, ("xla", "feed_forward", "gelu_tanh", "layer_norm")),
            ("bit", "BiT-R50x1", 4, ("group_norm",)),
        ):
            yield Row(
                f"kernels-{name}-{precision}",
                f"{model} training step, batch {batch}, {precision}, without one kernel each",
                {"task": "training", "model": model, "batch": batch, "precision": precision},
                variants={f"without {kernel}": {"without": kernel} for kernel in kernels},
                rounds=8,
            )


def _artifacts() -> Iterator[Row]:
    """Yield rows of exported models."""
    yield Row(
        "saved-model",
        "SavedModel of ViT-B/16, JPEG bytes to probabilities, batch 8, float32",
        {"batch": 8},
        peers=("keras_hub",),
        worker="saved_model.py",
        rounds=7,
    )
    for precision in ("float32", "dynamic_int8"):
        yield Row(
            f"tflite-{precision}",
            f"TFLite file of ViT-B/16, one image, {precision}",
            {"precision": precision},
            peers=("keras_hub",),
            worker="tflite.py",
            rounds=15,
        )


def _one_image() -> Iterator[Row]:
    """Yield rows of the model and its exported files, one image at a time."""
    formats = {"float32": ("saved_model", "tflite", "onnx", "openvino"), "bfloat16": ("saved_model", "openvino")}
    for model in ("ViT-S/16", "ViT-B/16", "ViT-S/14"):
        for precision in ("float32", "bfloat16"):
            yield Row(
                f"one-image-{model[4:].replace('/', '')}-{precision}".lower(),
                f"One image through {model}, preprocessed pixels to probabilities, {precision}",
                {"model": model, "precision": precision},
                peers=("timm", "timm_compiled"),
                variants={name: {"system": name} for name in formats[precision]},
                worker="one_image.py",
                rounds=25,
                home="keras_vit_exports",
            )


def _input() -> Iterator[Row]:
    """Yield rows of input pipelines for training."""
    for width, megapixels, count, batch_size, batches in ((500, 0.2, 256, 64, 16), (4000, 12, 16, 8, 4)):
        arguments = {"batch_size": batch_size}
        yield Row(
            f"input-{width}",
            f"Training batches of 224 x 224 from JPEG files of {width} x {width * 3 // 4} ({megapixels} megapixels)",
            {"batch": batch_size * batches, "arguments": arguments},
            peers=("keras_directory", "keras_hub_guide", "timm"),
            variants={f"keras_vit {key}": {"arguments": {**arguments, key: True}} for key in ("scaled", "as_tuples")},
            worker="input.py",
            files=(width, count),
        )


def _startup() -> Iterator[Row]:
    """Yield rows of start-up costs."""
    for backend in ("tensorflow", "jax"):
        names = ("import_keras", "import_keras_vit")
        yield Row(
            f"import-{backend}",
            f"`import keras_vit` compared with `import keras`, {backend} backend",
            variants={name.replace("_", " ", 1): {"system": name} for name in names},
            worker="startup.py",
            rounds=9,
            environment={"KERAS_BACKEND": backend},
            system=None,
            home=PACKAGE if backend == "tensorflow" else "keras_vit_jax",
        )
    for name, title in (
        ("build", "Building ViT-B/16 in a fresh process"),
        ("load", "Loading its `.npz` with 21,843 classes into a built model"),
    ):
        yield Row(name, title, {"model": "ViT-B/16"}, worker="startup.py", system=name)
    yield Row(
        "digits",
        "Digits: seconds to 97% accuracy on the test images, including building the model",
        worker="digits.py",
        peers=("keras_hub",),
        rounds=3,
    )


def _curves() -> Iterator[Row]:
    """Yield rows of costs by the number of tokens or blocks."""
    for task, rounds in (("inference", 3), ("training", 2)):
        variants: dict[str, Mapping] = {}
        for size in SIZES:
            tokens = f"{(size // 16) ** 2:,} tokens"
            variants[tokens] = {"image_size": size}
            variants[f"{tokens}, timm"] = {"image_size": size, "system": "timm"}
        at_once = {"image_size": 1024, "arguments": {"attention_chunk_size": 1024**2}}
        yield Row(
            f"length-{task}",
            f"ViT-S/16 {task}, one image, by the number of tokens",
            {"task": task, "model": "ViT-S/16"},
            variants={**variants, "4,096 tokens at once": at_once},
            rounds=rounds,
            together=False,
            system=None,
        )
    yield Row(
        "depth",
        "ViT-B/16 inference, one image, by the number of blocks",
        {"task": "inference"},
        variants={f"{depth} blocks": {"arguments": {"num_layers": depth}} for depth in (3, 6, 12, 24)},
        rounds=15,
        together=False,
        system=None,
    )


ROWS = {
    row.name: row
    for group in (_models, _adaptation, _kernels, _artifacts, _one_image, _input, _startup, _curves)
    for row in group()
}
