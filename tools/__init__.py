"""Programs for the development of the package, other than benchmarks. They are not installed."""
