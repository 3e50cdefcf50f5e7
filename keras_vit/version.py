"""The version of the package and the URL of its repository, importable without importing anything else."""

__version__ = "0.1.0"
REPOSITORY = ""  # URL; `python -m tools.repository` writes it into the files that cannot read it
