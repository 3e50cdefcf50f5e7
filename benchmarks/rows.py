"""The rows of the table: what is measured, against whom, and what the goal is."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import goals
from keras_vit.benchmarking import race

WORKERS = Path(__file__).with_name("workers")
OURS = "keras_vit"


@dataclasses.dataclass(frozen=True)
class Row:
    """A measurement.

    Attributes:
        name: What `--rows` and `ROWS` select it by.
        title: What the table calls it.
        work: Of the worker, see `contestants.Work`.
        peers: Systems of other packages that do the same work.
        variants: Further runs of this package by name, with what they change of `work` and of its `arguments`; the key
            `"system"` names another function of the worker.
        worker: The script.
        rounds: Steps that each takes.
        together: Whether all are there at once and take their steps in turn; otherwise one after the other, for what
            would not fit into memory together.
        goals: What must come out, by name; see `benchmarks.goals`.
        environment: Variables of the processes.
        system: This package's own function in the worker; None where only variants run.
        home: Name of the environment that this package runs in.
    """

    name: str
    title: str
    work: Mapping = dataclasses.field(default_factory=dict)
    peers: tuple[str, ...] = ()
    variants: Mapping[str, Mapping] = dataclasses.field(default_factory=dict)
    worker: Path = race.CONTESTANTS
    rounds: int = 5
    together: bool = True
    goals: tuple[Callable, ...] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    system: str | None = OURS
    home: str = OURS

    def entrants(self, python_of, root=race.ROOT):
        """Returns the entrants of the race.

        Args:
            python_of: Function from the name of an environment to its Python.
            root: Checkout of this package to measure.
        """
        common = {"script": self.worker, "environment": dict(self.environment)}
        found, own = [], python_of(self.home)
        if self.system:
            found.append(race.entrant(self.system, own, work=dict(self.work), root=root, **common))
        for name, changes in self.variants.items():
            changes = dict(changes)
            system = changes.pop("system", OURS)
            work = {**self.work, **changes}
            found.append(race.entrant(name, own, system=system, work=work, root=root, **common))
        for name in self.peers:
            found.append(race.entrant(name, python_of(name), work=dict(self.work), root=None, **common))
        return found


def _models():
    """Inference and training steps."""
    peers = {"float32": ("keras_hub", "vit_keras", "timm", "transformers"), "bfloat16": ("keras_hub", "timm")}
    for precision, ahead in (("float32", 1.05), ("bfloat16", 1.10)):
        for batch in (16, 1):
            yield Row(
                f"inference-{batch}-{precision}",
                f"ViT-B/16 inference, batch {batch}, {precision}",
                {"task": "inference", "batch": batch, "precision": precision},
                peers=peers[precision],
                rounds=5 if batch == 16 else 25,
                goals=(goals.ahead(ahead),),
            )
        remat = {"keras_vit remat": {"arguments": {"remat": "blocks"}}}
        yield Row(
            f"training-{precision}",
            f"ViT-B/16 training step, batch 8, {precision}",
            {"task": "training", "batch": 8, "precision": precision},
            peers=("keras_hub", "timm"),
            variants=remat,
            rounds=8,
            goals=(
                goals.ahead(ahead, excluding=tuple(remat)),
                goals.memory("keras_hub", 0.6),
                goals.memory("timm", 1.0, own_only=True),
                goals.memory_of("keras_vit remat", "keras_vit", 0.5),
            ),
        )
    for model in ("R50+ViT-B/16", "BiT-R50x1"):
        yield Row(
            f"inference-{model.split('+')[0].lower().replace('bit-r50x1', 'bit')}",
            f"{model} inference, batch 8, float32",
            {"task": "inference", "model": model, "batch": 8},
            peers=("timm",),
            rounds=7,
            goals=(goals.ahead(1.0),),
        )
    yield Row(
        "inference-16-compiled",
        "ViT-B/16 inference, batch 16, bfloat16, beside torch.compile",
        {"task": "inference", "batch": 16, "precision": "bfloat16"},
        peers=("timm_compiled",),
        rounds=5,
        goals=(goals.ahead(1.0),),
    )


def _artefacts():
    """Exported models."""
    yield Row(
        "saved-model",
        "SavedModel of ViT-B/16, JPEG bytes to probabilities, batch 8, float32",
        {"batch": 8},
        peers=("keras_hub",),
        worker=WORKERS / "saved_model.py",
        rounds=7,
        goals=(goals.ahead(1.1),),
    )
    for precision in ("float32", "dynamic_int8"):
        yield Row(
            f"tflite-{precision}",
            f"TFLite file of ViT-B/16, one picture, {precision}",
            {"precision": precision},
            peers=("keras_hub",),
            worker=WORKERS / "tflite.py",
            rounds=15,
            goals=(goals.ahead(1.0),),
        )


def _startup():
    """Fresh processes."""
    for backend in ("tensorflow", "jax"):
        names = ("import_keras", "import_keras_vit")
        yield Row(
            f"import-{backend}",
            f"`import keras_vit` beside `import keras`, {backend} backend",
            variants={name.replace("_", " ", 1): {"system": name} for name in names},
            worker=WORKERS / "startup.py",
            rounds=9,
            goals=(
                goals.more_seconds("import keras_vit", "import keras", 0.2),
                *((goals.says("import keras_vit", "TensorFlow not imported"),) if backend == "jax" else ()),
            ),
            environment={"KERAS_BACKEND": backend},
            system=None,
            home=OURS if backend == "tensorflow" else "keras_vit_jax",
        )
    for name, title, limit in (
        ("build", "Building ViT-B/16 in a fresh process", 1.5),
        ("load", "Loading its `.npz` with 21,843 classes into a built model", 2.0),
    ):
        yield Row(
            name,
            title,
            {"model": "ViT-B/16"},
            worker=WORKERS / "startup.py",
            rounds=5,
            goals=(goals.at_most_seconds(name, limit),),
            system=name,
        )
    yield Row(
        "digits",
        "Digits: seconds to 97 % on the test images, from building the model on",
        worker=WORKERS / "digits.py",
        peers=("keras_hub",),
        rounds=3,
        goals=(goals.ahead(2.0),),
    )


SIZES = (224, 320, 512, 768, 1024)  # pixels: 196 to 4,096 patches of 16
CHUNK = 256


def _curves():
    """Costs against the number of tokens and of blocks, each in a process of its own."""
    less_memory = goals.memory_of(f"4096 tokens in chunks of {CHUNK}", "4096 tokens", 0.5)
    for task, rounds in (("inference", 3), ("training", 2)):
        variants = {}
        for size in SIZES:
            tokens = (size // 16) ** 2
            variants[f"{tokens} tokens"] = {"image_size": size}
            if tokens > CHUNK:
                chunked = {"image_size": size, "arguments": {"attention_chunk_size": CHUNK}}
                variants[f"{tokens} tokens in chunks of {CHUNK}"] = chunked
        yield Row(
            f"length-{task}",
            f"ViT-Ti/16 {task}, one image, against the number of tokens",
            {"task": task, "model": "ViT-Ti/16"},
            variants=variants,
            rounds=rounds,
            together=False,
            # Training keeps the weights of every block, inference those of one beside libraries and model.
            goals=(less_memory,) if task == "training" else (),
            system=None,
        )
    yield Row(
        "depth",
        "ViT-B/16 inference, one image, against the number of blocks",
        {"task": "inference"},
        variants={f"{depth} blocks": {"arguments": {"num_layers": depth}} for depth in (3, 6, 12, 24)},
        rounds=15,
        together=False,
        system=None,
    )


ROWS = {row.name: row for group in (_models, _artefacts, _startup, _curves) for row in group()}
