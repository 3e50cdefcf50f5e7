"""Repeat the golden training runs on virtual devices in a separate process, and write the error of each run as JSON.

    python -m tests.training.virtual_devices 2 errors.json

TensorFlow's collective operations do not allow groups of two sizes in a process, which has one number of devices.
"""

import json
import pathlib
import sys

import tensorflow as tf

MASKED = {"masked, one device": (1, 1), "masked, two replicas, accumulation 2": (2, 2)}  # replicas, micro-batches
PROBES = {"linear probe, two replicas, accumulation 2": 2}  # micro-batches


def follow_probe(micro_batches):
    """Return the difference from the training by hand, or None."""
    from tests.training import linear_probe
    from tests.training.trajectories import strategy_on

    state, losses, by_hand = linear_probe.train(strategy_on(2), accumulation_steps=micro_batches)
    try:
        linear_probe.check(state.model, losses, *by_hand, parts=2 * micro_batches)
    except AssertionError as error:
        return str(error)
    return None


def main():
    devices = int(sys.argv[1])
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    from tests.training import masked, trajectories  # after the devices: whatever an import computes fixes their number

    found = {}
    for name, way in trajectories.CASES:
        if trajectories.WAYS[way][0] == devices:
            found[f"{name}, {way}"] = trajectories.follow(name, *trajectories.WAYS[way][1:])
    if devices == 2:
        found |= {name: masked.follow(*way) for name, way in MASKED.items()}
        found |= {name: follow_probe(micro_batches) for name, micro_batches in PROBES.items()}
    pathlib.Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
