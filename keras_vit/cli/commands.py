"""The command `keras-vit`, whose subcommands are the programs in `train/` and `export/`."""

import importlib.util
import os
import runpy
import sys

PROGRAMS = {
    "train": "train.main",
    "launch": "train.launch",
    "evaluate": "train.evaluate",
    "predict": "train.predict",
    "embed": "train.embed",
    "similar": "train.similar",
    "visualize": "train.visualize",
    "export": "export.main",
    "verify": "export.verify",
    "benchmark": "export.benchmark",
    "serve": "export.serve",
    "client": "export.client",
    "convert-checkpoint": "export.convert_checkpoint",
    "check-data": "train.check_data",
    "sample-data": "train.sample_data",
    "make-tfrecords": "train.make_tfrecords",
    "plan": "train.plan",
    "sweep": "train.sweep",
    "models": "train.models",
    "runs": "train.runs",
    "vtab": "train.vtab",
}
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main() -> None:
    """Run the subcommand named on the command line."""
    name, arguments = (sys.argv[1:2] or ["--help"])[0], sys.argv[2:]
    if name in ("--help", "-h", "-help", "help"):
        sys.stdout.write(overview())
        return
    if name == "--version":
        from keras_vit.version import __version__

        sys.stdout.write(f"{__version__}\n")
        return
    if name not in PROGRAMS:
        from keras_vit.util import checks, foreign_names  # imports NumPy, which the overview does not need

        meant = foreign_names.COMMANDS.get(name.lower())
        hint = checks.did_you_mean([meant] if meant else checks.closest(name, PROGRAMS))
        sys.stderr.write(f"keras-vit: there is no command {name!r}.{hint} The commands are: {', '.join(PROGRAMS)}.\n")
        sys.exit(2)
    sys.argv[1:] = arguments
    runpy.run_module(module_of(name), run_name="__main__", alter_sys=True)


def overview() -> str:
    """Return the output of `keras-vit --help`."""
    width = max(map(len, PROGRAMS)) + 2
    lines = ["usage: keras-vit COMMAND [flags]", "", "commands:"]
    lines += [f"  {name:{width}}{_summary(program)}" for name, program in PROGRAMS.items()]
    return "\n".join([*lines, "", "keras-vit COMMAND --help shows the flags of a command."]) + "\n"


def module_of(name: str) -> str:
    """Return the module of a subcommand, both in an installed package and in a checkout."""
    folder, module = PROGRAMS[name].split(".")
    package = f"keras_vit._{folder}"
    if importlib.util.find_spec(package) is None:
        path = os.path.join(_ROOT, folder)
        spec = importlib.util.spec_from_file_location(
            package, os.path.join(path, "__init__.py"), submodule_search_locations=[path]
        )
        assert spec is not None
        sys.modules[package] = importlib.util.module_from_spec(spec)
    return f"{package}.{module}"


def _summary(program: str) -> str:
    """Return the first line of a program's docstring, without importing it."""
    folder, module = program.split(".")
    installed = os.path.join(_ROOT, "keras_vit", f"_{folder}", f"{module}.py")
    path = installed if os.path.exists(installed) else os.path.join(_ROOT, folder, f"{module}.py")
    with open(path, encoding="utf-8") as file:
        return file.readline().strip().strip('"').rstrip(".")
