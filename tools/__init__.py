"""Programs for the development of the package that measure nothing and are not installed."""
