"""The version and the address of the package, importable (and readable) without importing anything else."""

__version__ = "0.1.0"
REPOSITORY = (
    ""  # address, such as https://github.com/OWNER/NAME; `python -m tools.repository` writes it into other files
)
