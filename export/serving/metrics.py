"""Metrics of the development server in Prometheus' text format, with the names and buckets of TensorFlow Serving.

References:
    - https://prometheus.io/docs/instrumenting/exposition_formats/
    - https://github.com/tensorflow/serving/blob/master/tensorflow_serving/servables/tensorflow/util.cc
"""

import bisect
import collections
import itertools

MEDIA_TYPE = "text/plain; version=0.0.4"
_BUCKETS = [10 * 1.8**power for power in range(33)]  # upper bounds in microseconds
_STATUSES = {
    200: "OK",
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


class Metrics:
    """Number of predict requests by status, and latencies of the successful requests."""

    def __init__(self, model_name: str):
        escaped = model_name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._model = f'model_name="{escaped}"'
        self._requests: collections.Counter[str] = collections.Counter()
        self._latencies = [0] * (len(_BUCKETS) + 1)
        self._microseconds = 0.0

    def record(self, status: int, seconds: float) -> None:
        """Count a request by the status of its HTTP response."""
        self._requests[_STATUSES.get(status, "INTERNAL")] += 1
        if status == 200:
            self._latencies[bisect.bisect_left(_BUCKETS, seconds * 1e6)] += 1
            self._microseconds += seconds * 1e6

    def render(self) -> str:
        """Return the metrics as text."""
        count, latency = ":tensorflow:serving:request_count", ":tensorflow:serving:request_latency"
        labels = f'{self._model},API="Predict",entrypoint="REST"'
        lines = [f"# TYPE {count} counter"]
        lines += [f'{count}{{{self._model},status="{name}"}} {found}' for name, found in self._requests.items()]
        lines.append(f"# TYPE {latency} histogram")
        bounds = [*map("{:.6g}".format, _BUCKETS), "+Inf"]
        for bound, total in zip(bounds, itertools.accumulate(self._latencies), strict=True):
            lines.append(f'{latency}_bucket{{{labels},le="{bound}"}} {total}')
        lines.append(f"{latency}_sum{{{labels}}} {self._microseconds:.0f}")
        lines.append(f"{latency}_count{{{labels}}} {sum(self._latencies)}")
        return "\n".join(lines) + "\n"
