"""The version and the address of the package, importable (and readable) without importing anything else."""

__version__ = "0.1.0"
REPOSITORY = ""  # address; `python -m tools.repository` writes it into the files that cannot read it
