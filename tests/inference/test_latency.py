"""Memory figures of a measurement."""

import subprocess
import sys

import numpy as np
import pytest

CHILD = """
import resource
from keras_vit.inference import latency
print(latency.peak_memory(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a new program what its parent held")
def test_memory_of_the_process_that_started_the_measurement_is_not_counted():
    ballast = np.ones(1_500_000_000, np.uint8)
    done = subprocess.run([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True, check=True)
    own, handed_on = map(int, done.stdout.split())
    assert 50_000_000 < own < ballast.nbytes <= handed_on
