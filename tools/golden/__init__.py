"""Programs that make the files of `tests/golden` again, or files of a new kind, one for each foreign project.

The files hold weights, inputs and what the project computes from them. A program takes weights and inputs from the
existing file, lets the project compute, and compares or writes:

    python -m tools.golden.timm_models timm_vit                    # compares with tests/golden/timm_vit_io.npz
    python -m tools.golden.timm_models timm_vit --output=/tmp/new  # writes there, with the versions of the packages

It needs the project, in an environment of its own: the names of its packages are in `PACKAGES` of each program, and the
versions that computed a file in its `__meta__`. A new file gets an entry in `FILES` of its program; its weights and
inputs, where no file holds them, are random numbers that its name decides. Nothing of the projects is copied.
"""
