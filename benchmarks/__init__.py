"""Benchmarks of this package and its peers. They are not installed; `make benchmark` runs them from the checkout."""
