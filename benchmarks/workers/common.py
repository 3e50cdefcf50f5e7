"""What the workers share. They run as scripts, also in peers' environments, which hold neither package."""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[2] / "keras_vit" / "benchmarking"))

import contestants  # noqa: E402

Work, serve, warmed = contestants.Work, contestants.serve, contestants.warmed
CLASSES, keras_hub_network = contestants.CLASSES, contestants.keras_hub_network
