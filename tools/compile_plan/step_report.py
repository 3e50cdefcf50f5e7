"""Text and JSON of the results of `step_plan`."""

import dataclasses
from typing import Any

from tools.compile_plan.compiler import Compiled
from tools.compile_plan.step_plan import Estimate
from tools.compile_plan.targets import GIB


@dataclasses.dataclass(frozen=True)
class Report:
    """Report of the compiled settings of a recipe. `rows` are (name, value) lines."""

    estimate: Estimate
    remedies: list[Estimate]  # settings that fit if the recipe does not fit
    largest: dict[bool, Estimate | None]  # largest batches without and with rematerialization
    versions: str  # versions of the compiler

    def rows(self) -> list[tuple[str, str]]:
        estimate, target = self.estimate, self.estimate.target
        memory = f"{_gib(target.memory)} of memory, {_gib(estimate.capacity)} of it for programs"
        peak = f"{target.peak_flops / 1e12:.4g} TFLOP/s, {target.bandwidth / 1e9:.4g} GB/s"
        lines = [
            ("target", f"{target.name}, {target.slices * target.chips} chips, {target.devices} devices with {memory}"),
            ("", f"peak per device: {peak} ({target.chip.source})"),
            ("compiled", f"the training step for all {target.devices} devices, by {self.versions}; it was not run"),
            *_rows(estimate),
        ]
        if not estimate.fits:
            lines += self._advice()
        return lines + [self._largest_row(remat, found) for remat, found in sorted(self.largest.items())]

    def _advice(self) -> list[tuple[str, str]]:
        """Return the changes that make the step fit. Each change was compiled."""
        lines = [
            f"{self._change(found)}  (fits with {_gib(found.free)} free, {_most(found)})" for found in self.remedies
        ]
        lines += [f"{self._change(found)}  ({_most(found)})" for found in self.largest.values() if found is not None]
        if not lines:
            lines = [
                "nothing that was tried fits: weights and optimizer may be too large for a device. Shard them on the "
                "JAX backend (KERAS_BACKEND=jax and --distribute=fsdp), or use devices with more memory."
            ]
        return [("" if index else "what fits", line) for index, line in enumerate(dict.fromkeys(lines))]

    def _change(self, found: Estimate) -> str:
        return " ".join(found.setting.overrides(self.estimate.setting))

    def _largest_row(self, remat: bool, found: Estimate | None) -> tuple[str, str]:
        name = "largest batch" if not remat or self.estimate.setting.remat else ""
        how = "with model.remat=blocks" if remat else "without rematerialization"
        if found is None:
            return name, f"none {how}: not even one image per device fits"
        each = found.setting.batch_size // found.target.devices
        return name, f"{found.setting.batch_size:,} ({each} per device) {how}: {_gib(found.free)} free, {_most(found)}"

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `rows` for JSON, with all figures per device."""
        target = self.estimate.target
        return {
            "target": target.name,
            "devices": target.devices,
            "peak_flops": target.peak_flops,
            "bandwidth": target.bandwidth,
            "source": target.chip.source,
            "compiler": self.versions,
            "capacity": self.estimate.capacity,
            **self._estimate_dict(self.estimate),
            "remedies": [self._estimate_dict(found) for found in self.remedies],
            "largest_batch": {
                "remat" if remat else "no_remat": found and self._estimate_dict(found)
                for remat, found in self.largest.items()
            },
        }

    def _estimate_dict(self, estimate: Estimate) -> dict[str, Any]:
        setting, result = estimate.setting, estimate.result
        compiled: dict[str, Any] = {}
        if isinstance(result, Compiled):
            compiled = dataclasses.asdict(result)
            compiled |= {"least_seconds": estimate.seconds, "images_per_second": estimate.images_per_second}
        overrides = setting.overrides(self.estimate.setting)
        fits = {"fits": estimate.fits, "memory": result.memory, "free": estimate.free}
        return {**dataclasses.asdict(setting), "overrides": overrides, **fits, **compiled}


def _rows(estimate: Estimate) -> list[tuple[str, str]]:
    result = estimate.result
    memory = f"fits: {_gib(result.memory)} of {_gib(estimate.capacity)} per device, {_gib(estimate.free)} free"
    if not estimate.fits:
        memory = f"does NOT fit: needs {_gib(result.memory)} per device, {_gib(-estimate.free)} too much"
    if not isinstance(result, Compiled):
        return [("memory", memory)]
    program = f", {_gib(result.code)} program" if result.code else ""
    sent = f"{result.sent / 1e9:.4g} GB per step"
    if estimate.target.slices > 1:
        sent += f" within its slice, {result.sent_across / 1e9:.4g} GB to other slices"
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(result.collectives.items()))
    times = ", ".join(f"{name} {_ms(time)}" for name, time in estimate.seconds.items() if time)
    return [
        ("memory", memory),
        ("", f"{_gib(result.arguments)} weights, optimizer and batch, {_gib(result.temporaries)} temporaries{program}"),
        ("operations", f"{result.flops / 1e12:.4g} TFLOP per step and device"),
        ("traffic", f"{result.bytes_accessed / 1e9:.4g} GB of memory traffic per step and device"),
        *([("collectives", f"{counts}; each device sends {sent}")] if counts else []),
        ("step", f"at least {_ms(estimate.step_seconds)}, limited by {estimate.limit}: {times}"),
        ("speed", f"{_most(estimate)} with a batch size of {estimate.setting.batch_size:,}"),
    ]


def _most(estimate: Estimate) -> str:
    return f"at most {estimate.images_per_second:,.0f} images/s"


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"


def _ms(seconds: float) -> str:
    return f"{1_000 * seconds:.3g} ms"
