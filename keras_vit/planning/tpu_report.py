"""Text and JSON of the results of `tpu_plan`."""

from keras_vit.planning.tpu_compiler import Compiled
from keras_vit.planning.tpu_plan import Estimate, Setting
from keras_vit.planning.tpu_targets import GIB, Target


def rows(
    estimate: Estimate, remedies: list[Estimate], largest: dict[bool, Estimate | None], versions: str
) -> list[tuple[str, str]]:
    """Return (name, value) lines.

    `remedies` fit where the recipe does not. `largest` has the largest batches, without and with rematerialization.
    """
    target, generation = estimate.target, estimate.target.generation
    lines = [
        (
            "target",
            f"{target.name}, {target.chips} chips, {target.devices} devices with {_gib(target.memory)} of memory, "
            f"{_gib(estimate.capacity)} of it for programs",
        ),
        (
            "",
            f"peak per device: {target.peak_flops / 1e12:.4g} TFLOP/s, {target.bandwidth / 1e9:.4g} GB/s "
            f"({generation.source})",
        ),
        ("compiled", f"the whole training step for all {target.devices} devices, by {versions}; it was not run"),
        *_answer(estimate),
    ]
    if not estimate.fits:
        lines += _advice(estimate, remedies, largest)
    lines += [_largest_row(remat, found, estimate.setting) for remat, found in sorted(largest.items())]
    return lines


def _answer(estimate: Estimate) -> list[tuple[str, str]]:
    setting, result = estimate.setting, estimate.result
    if not isinstance(result, Compiled):
        return [
            (
                "memory",
                f"does NOT fit: needs {_gib(result.memory)} per device, {_gib(-estimate.free)} too much",
            ),
        ]
    seconds = estimate.seconds
    exchange = f", interconnect {_ms(seconds['interconnect'])}" if estimate.target.chips > 1 else ""
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(result.collectives.items()))
    answer = "fits" if estimate.fits else "does NOT fit"
    return [
        (
            "memory",
            f"{answer}: {_gib(result.memory)} of {_gib(estimate.capacity)} per device, {_gib(estimate.free)} free",
        ),
        (
            "",
            f"{_gib(result.arguments)} weights, optimizer and batch, {_gib(result.temporaries)} temporaries, "
            f"{_gib(result.code)} program",
        ),
        ("operations", f"{result.flops / 1e12:.4g} TFLOP per step and device"),
        ("traffic", f"{result.bytes_accessed / 1e9:.4g} GB of memory traffic per step and device"),
        *([("collectives", counts)] if counts else []),
        (
            "step",
            f"at least {_ms(estimate.step_seconds)}, limited by {estimate.limit}: compute "
            f"{_ms(seconds['compute'])}, memory {_ms(seconds['memory bandwidth'])}{exchange}",
        ),
        ("speed", f"at most {estimate.images_per_second:,.0f} images/s with a batch size of {setting.batch_size:,}"),
    ]


def _advice(estimate: Estimate, remedies: list[Estimate], largest: dict) -> list[tuple[str, str]]:
    """Return the changes that make the step fit; each was compiled."""
    lines = []
    for found in remedies:
        change = " ".join(found.setting.overrides(estimate.setting))
        lines.append(f"{change}  (fits with {_gib(found.free)} free, at most {found.images_per_second:,.0f} images/s)")
    for found in largest.values():
        if found is not None:
            change = " ".join(found.setting.overrides(estimate.setting))
            lines.append(f"{change}  (at most {found.images_per_second:,.0f} images/s)")
    if not lines:
        lines.append(
            "nothing that was tried fits: weights and optimizer may be too large for a device. Shard them on the JAX "
            "backend (KERAS_BACKEND=jax and --fsdp), or use devices with more memory."
        )
    return [("" if index else "what fits", line) for index, line in enumerate(dict.fromkeys(lines))]


def _largest_row(remat: bool, found: Estimate | None, requested: Setting) -> tuple[str, str]:
    name = "largest batch" if not remat or requested.remat else ""
    how = "with model.remat=blocks" if remat else "without rematerialization"
    if found is None:
        return name, f"none {how}: not even one image per device fits"
    each = found.setting.batch_size // found.target.devices
    return name, (
        f"{found.setting.batch_size:,} ({each} per device) {how}: {_gib(found.free)} free, at most "
        f"{found.images_per_second:,.0f} images/s"
    )


def as_dict(estimate: Estimate, remedies: list[Estimate], largest: dict[bool, Estimate | None], versions: str) -> dict:
    """Return the content of `rows` for JSON. The arguments are the same."""
    requested = estimate.setting
    return {
        **_target_dict(estimate.target),
        "compiler": versions,
        "capacity_bytes_per_device": estimate.capacity,
        **_estimate_dict(estimate, requested),
        "remedies": [_estimate_dict(found, requested) for found in remedies],
        "largest_batch": {
            "remat" if remat else "no_remat": found and _estimate_dict(found, requested)
            for remat, found in largest.items()
        },
    }


def _target_dict(target: Target) -> dict:
    return {
        "target": target.name,
        "chips": target.chips,
        "devices": target.devices,
        "peak_flops_per_device": target.peak_flops,
        "bandwidth_per_device": target.bandwidth,
        "source": target.generation.source,
    }


def _estimate_dict(estimate: Estimate, requested: Setting) -> dict:
    setting, result = estimate.setting, estimate.result
    content = {
        "batch_size": setting.batch_size,
        "remat": setting.remat,
        "accumulation_steps": setting.accumulation_steps,
        "overrides": list(setting.overrides(requested)),
        "fits": estimate.fits,
        "memory_bytes_per_device": result.memory,
        "free_bytes_per_device": estimate.free,
    }
    if isinstance(result, Compiled):
        content |= {
            "argument_bytes": result.arguments,
            "temporary_bytes": result.temporaries,
            "flops_per_device": result.flops,
            "bytes_accessed_per_device": result.bytes_accessed,
            "collectives": result.collectives,
            "least_seconds": estimate.seconds,
            "limited_by": estimate.limit,
            "least_step_seconds": estimate.step_seconds,
            "most_images_per_second": estimate.images_per_second,
        }
    return content


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"


def _ms(seconds: float) -> str:
    return f"{1_000 * seconds:.3g} ms"
