"""Preemption: stop without loss on SIGTERM or Ctrl-C."""

from typing import Any

from keras_vit.runs.errors import Interrupted
from keras_vit.util import signals


class StopRequest(signals.StopRequest):
    """Request to stop a run. Raises `Interrupted` as soon as nothing would be lost."""

    exit_code = Interrupted.exit_code

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        if isinstance(error, signals.Stopped) and self._safe:
            raise Interrupted(self.farewell(error.exit_code - 128)) from None

    def farewell(self, number: int) -> str:
        return f"Stopped by {signals.name_of(number)}. Nothing is lost: start the same command again."
