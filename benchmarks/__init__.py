"""This package beside its peers, measured in one run. Not installed; `make benchmark` runs it from the checkout."""
