"""Programs that recreate the golden files in `tests/golden`, or create new golden files. Each project has a program.

A golden file contains weights, inputs, and the outputs of the original project. A program reads the weights and inputs
from the existing file, runs the project, and compares or writes the outputs:

    python -m tools.golden.timm_models timm_vit                    # compares with tests/golden/timm_vit_io.npz
    python -m tools.golden.timm_models timm_vit --output=/tmp/new  # writes there, with the versions of the packages

Install the project in a separate environment. `PACKAGES` in each program lists the packages, and `__meta__` in a golden
file lists the versions that computed it. To create a new file, add an entry to `FILES` of the program. If no file
contains its weights and inputs, they are random numbers seeded by the name of the file. No code of the projects is
copied.
"""
