"""Document of a study, with a section per panel. It is written again whenever runs have finished."""

import os
from collections.abc import Sequence

from benchmarks import tables
from benchmarks.paper import drawing, published, running
from benchmarks.paper.panel import Panel
from benchmarks.paper.statements import summary
from benchmarks.paper.study import Study
from keras_vit.recipe import Model
from keras_vit.util import file_io, formatting

NAME = "paper.md"
FIGURES = "figures"
PUBLISHED = "published"
_INTRODUCTION = """# The paper's experiments in miniature

`python -m benchmarks.paper.main` repeats experiments of [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929)
with small models on small images. Numbers are means ± the sample standard deviation over the seeds. A setting counts as
more accurate than another if Welch's one-sided test gives p < 0.05. Whether a claim reproduces is computed from the
numbers.
"""


def write(study: Study, panels: dict[str, Panel], folder: str) -> str:
    """Write the sections and figures of panels, and return the path of the document.

    Args:
        study: The study.
        panels: Panels by name. The sections of other panels do not change.
        folder: Directory of `paper.md`, which is created if it does not exist. Figures are written to `figures/`.

    Raises:
        ValueError: If the document exists and has no markers for a panel.
    """
    path = os.path.join(folder, NAME)
    if not os.path.exists(path):
        sections = [_empty(name, panel.title) for name, panel in panels.items()]
        file_io.write_text(path, "\n".join([_INTRODUCTION, *sections, _empty(PUBLISHED, "Published figures")]))
    for name, panel in panels.items():
        tables.write_between(path, name, section(study, panel, os.path.join(folder, FIGURES)))
    tables.write_between(path, PUBLISHED, published.markdown())
    return path


def _empty(name: str, title: str) -> str:
    return f"## {title}\n\n<!-- {name} -->\n<!-- /{name} -->\n"


def section(study: Study, panel: Panel, folder: str) -> str:
    """Return the text of a panel's section, and write its figures to a directory."""
    done, total = running.count(panel.runs(study))
    parts = [f"**Claim.** {panel.claim}", f"**Here.** {panel.setup} {details(study, panel)}"]
    if not done:
        return "\n\n".join([*parts, f"**Not run yet:** 0 of {total} runs are finished."])
    parts += [figure for name, drawn in panel.draw(study).items() if (figure := _figure(panel, name, drawn, folder))]
    parts.append(formatting.markdown_table(*panel.table(study)))
    if done < total:
        parts.append(f"**Not complete:** {done} of {total} runs are finished, so nothing is concluded.")
    elif study.seeds < 2:
        parts.append("**One seed:** nothing is concluded.")
    else:
        parts.append(summary(panel.statements(study)))
    return "\n\n".join(parts)


def details(study: Study, panel: Panel) -> str:
    """Return sentences about the data, the models, the training and the cost of a panel."""
    runs = panel.runs(study)
    models = dict.fromkeys(_described(stage(study).recipe.model) for stage in panel.stages)
    first = next(iter(runs.values()))
    steps = sorted({recipe.total_steps for recipe in runs.values()})
    sizes = sorted({recipe.data.batch_size for recipe in runs.values()}, reverse=True)
    rates = sorted({recipe.optim.learning_rate for recipe in runs.values()})
    return " ".join(
        [
            f"Data: `{study.source}`, prepared by `{first.data.pp_train}`.",
            f"Models, except for the settings that the panel varies: {'; '.join(models)}.",
            f"Training: {_listed(steps)} steps of {_listed(sizes)} images, peak rates {_listed(rates)}, a cosine "
            f"schedule with 10% warm-up, clipping at {first.optim.clip_norm:g}; seeds 0 to {study.seeds - 1}.",
            f"All runs together take {running.total_operations(runs):.2g} operations.",
        ]
    )


def _described(model: Model) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in model.arguments.items())
    return f"`{model.variant}` (`{arguments}`)"


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)


def _figure(panel: Panel, name: str, drawn: object, folder: str) -> str:
    file = f"paper_{name}"
    drawing.save(drawn, os.path.join(folder, file))
    return "\n".join(
        [
            "<picture>",
            f'  <source media="(prefers-color-scheme: dark)" srcset="{FIGURES}/{file}_dark.svg">',
            f'  <img alt="{panel.title}: {name}." src="{FIGURES}/{file}_light.svg">',
            "</picture>",
        ]
    )
