"""Run directories: records, checkpoints and models of runs, to read and to compare."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_vit.runs.trained_run import Run as Run
    from keras_vit.runs.trained_run import load_run as load_run

__all__ = ["Run", "load_run"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # imports NumPy, which the flags of programs do not need
        from keras_vit.runs import trained_run

        return getattr(trained_run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
