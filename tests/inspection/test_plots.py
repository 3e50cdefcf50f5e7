import builtins
import importlib
import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from keras_vit.inspection import plots
from keras_vit.inspection.plots import _matplotlib
from keras_vit.util.metrics import Metric

pytest.importorskip("matplotlib", reason="figures need matplotlib")
RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (40, 60, 3)).astype("uint8")


@pytest.fixture(scope="module")
def drawings():
    return {
        "filters": plots.embedding_filters(RNG.normal(size=(9, 4, 4, 3))),
        "filters of one channel": plots.embedding_filters(RNG.normal(size=(3, 2, 2, 1))),
        "filters of features": plots.embedding_filters(RNG.normal(size=(3, 1, 1, 64))),
        "positions": plots.position_similarity(RNG.uniform(-1, 1, (3, 2, 3, 2))),
        "many positions": plots.position_similarity(RNG.uniform(-1, 1, (37, 37, 37, 37))),
        "distance": plots.attention_distance(RNG.uniform(0, 99, (12, 4)), num_images=1),
        "one head": plots.attention_distance(RNG.uniform(0, 99, (1, 1))),
        "similarity": plots.layer_similarity(RNG.uniform(0, 1, (2, 3)), "ab", "cde"),
        "curves": plots.training_curve(
            [{"step": 1, "loss": 2.0}, {"step": 1, "eval_loss": 2.0}], plots.CLASSIFICATION[0]
        ),
        "values": plots.predicted_against_true(*RNG.normal(size=(2, 9, 5)), "abcde"),
        "overlays": plots.attention_overlays([IMAGE, IMAGE[..., :1]], {"rollout": RNG.uniform(size=(2, 3, 3))}),
        "layers": plots.attention_overlays([IMAGE[:9, :9]], {str(i): RNG.uniform(size=(1, 3, 3)) for i in range(8)}),
    }


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_every_figure_is_written(drawings, tmp_path, ending):
    for name, figure in drawings.items():
        path = tmp_path / f"{name}.{ending}"
        plots.save(figure, str(path))
        if ending == "png":  # the drawing, not an empty canvas
            pixels = np.asarray(Image.open(path).convert("RGB"))
            assert min(pixels.shape[:2]) > 50 and pixels.std() > 1, name
        else:
            shapes = [shape.tag.rpartition("}")[2] for shape in ElementTree.parse(path).iter()]
            assert shapes[0] == "svg" and {"path", "image"} & set(shapes), name
    assert len(list(tmp_path.iterdir())) == len(drawings)  # no temporary file is left


@pytest.mark.slow
def test_figures_are_saved_as_pdf(drawings, tmp_path):
    plots.save(drawings["distance"], str(tmp_path / "distance.pdf"))
    assert (tmp_path / "distance.pdf").read_bytes().startswith(b"%PDF")


def test_axes_are_labeled(drawings):
    for name in ("positions", "distance", "similarity", "curves", "values"):
        axes = drawings[name].axes[0]
        assert axes.get_xlabel()
        assert axes.get_ylabel()
    assert drawings["distance"].axes[0].get_ylabel() == "mean attention distance (pixels)"


def test_color_scales_fit_the_data(drawings):
    rng = np.random.default_rng(1)
    similarity = rng.uniform(0.9, 0.95, (3, 2, 3, 2))
    similarity.reshape(6, 6)[np.eye(6, dtype=bool)] = 1.0
    image = plots.position_similarity(similarity).axes[0].images[0]
    assert 0.9 <= image.norm.vmin < image.norm.vmax <= 0.95
    for name in ("distance", "one head"):
        axes = drawings[name].axes[0]
        offsets = axes.collections[0].get_offsets()
        assert axes.get_ylim()[0] == 0 and offsets[:, 1].max() < axes.get_ylim()[1]


def test_scatter_plot_has_a_panel_per_value():
    true = np.array([[1.0, 5.0], [2.0, 6.0], [3.0, 7.0]])
    figure = plots.predicted_against_true(true, true + [[0.5, np.nan], [0.5, 1.0], [0.5, 1.0]], ["age", "weight"])
    ages, weights = figure.axes
    assert ages.get_title() == "age: MAE 0.5, R2 0.625"
    np.testing.assert_allclose(ages.collections[0].get_offsets(), [[1.0, 1.5], [2.0, 2.5], [3.0, 3.5]])
    np.testing.assert_allclose(ages.lines[0].get_xydata(), [[1.0, 1.0], [3.5, 3.5]])  # the diagonal
    np.testing.assert_allclose(weights.collections[0].get_offsets(), [[6.0, 7.0], [7.0, 8.0]])
    for count, as_pixels in ((5_000, False), (5_001, True)):
        (axes,) = plots.predicted_against_true(*np.zeros((2, count, 1)), ["age"]).axes
        assert bool(axes.collections[0].get_rasterized()) == as_pixels


def test_a_curve_has_the_values_of_its_steps():
    lines = [{"step": 2, "loss": 1.5}, {"step": 1, "loss": 2.0}, {"step": 2, "eval_loss": 1.0}]
    axes = plots.training_curve(lines, plots.CLASSIFICATION[0]).axes[0]
    evaluation, training = axes.lines
    assert training.get_xydata().tolist() == [[1, 2.0], [2, 1.5]] and evaluation.get_xydata().tolist() == [[2, 1.0]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["evaluation", "training"]
    assert axes.get_ylabel() == "loss (nats)"
    axes = plots.training_curve([{"step": 1, "accuracy": 0.5}], plots.CLASSIFICATION[1]).axes[0]
    assert axes.get_ylabel() == "accuracy" and axes.get_legend() is None  # a single curve


@pytest.mark.parametrize(("count", "marker"), [(29, "o"), (30, "None")])
def test_a_curve_of_many_steps_has_no_dots(count, marker):
    lines = [{"step": step, "loss": 1.0} for step in range(count)]
    assert plots.training_curve(lines, plots.CLASSIFICATION[0]).axes[0].lines[0].get_marker() == marker


@pytest.mark.parametrize(("count", "most", "rows", "columns"), [(9, 7, 2, 5), (6, 2, 3, 2), (1, 7, 1, 1)])
def test_filters_are_arranged_in_rows(count, most, rows, columns):
    grid = plots.embedding_filters(np.ones((count, 1, 1, 3)), columns=most).axes[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == (rows, columns)


@pytest.mark.parametrize(("side", "smoothing"), [(63, "nearest"), (64, "auto")])
def test_overlays_have_a_column_per_image_and_a_row_per_map(side, smoothing):
    image = np.zeros((8, side, 3), np.uint8)
    figure = plots.attention_overlays([image] * 2, {"rollout": [np.ones((1, 2))] * 2}, ["one", "two"])
    assert [axes.get_title() for axes in figure.axes] == ["one", "two", "", ""]
    assert [axes.get_ylabel() for axes in figure.axes] == ["image", "", "rollout", ""]
    assert figure.axes[0].images[0].get_interpolation() == smoothing
    factor = 64 // side  # small images are enlarged below a map
    assert figure.axes[2].images[0].get_array().shape == (8 * factor, side * factor, 3)


def test_gray_images_are_drawn_dark_on_light(monkeypatch):
    drawn = []
    monkeypatch.setattr(_matplotlib, "save", lambda figure, path: drawn.append(figure))
    for channels in (1, 3):
        plots.draw_report("x.png", [], np.full((1, 2, 2, channels), 7, np.uint8), ["a"])
    ink, color = (figure.axes[0].images[0] for figure in drawn)
    assert (ink.get_cmap().name, ink.get_clim()) == ("gray_r", (0, 255)) and ink.get_array().tolist() == [[7, 7]] * 2
    assert color.get_array().tolist() == [[[7] * 3] * 2] * 2


def test_attention_distances_are_plotted_per_layer_and_head(drawings):
    axes = plots.attention_distance(np.array([[1.0, 2.0], [3.0, 5.0], [0.0, 1.0]]), num_images=1_200).axes[0]
    assert axes.get_title() == "Attention distance, 1,200 images"
    assert drawings["distance"].axes[0].get_title() == "Attention distance, 1 image"
    assert plots.attention_distance(np.ones((1, 1)), title="", num_images=2).axes[0].get_title() == "2 images"
    assert axes.lines[0].get_xydata().tolist() == [[1, 1.5], [2, 4.0], [3, 0.5]]  # the means of the heads
    offsets = np.asarray(axes.collections[0].get_offsets())
    assert offsets[:, 1].tolist() == [1, 2, 3, 5, 0, 1] and np.round(offsets[:, 0]).tolist() == [1, 1, 2, 2, 3, 3]


def test_layers_of_both_models_have_their_names():
    values = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    axes = plots.layer_similarity(values, ["a", "b"], ["c", "d", "e"], labels=("mine", "theirs")).axes[0]
    names = [[label.get_text() for label in axis.get_ticklabels()] for axis in (axes.yaxis, axes.xaxis)]
    assert names == [["a", "b"], ["c", "d", "e"]]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("mine", "theirs")
    np.testing.assert_array_equal(axes.images[0].get_array(), values)


def test_filters_are_scaled_by_their_largest_value_around_gray():
    figure = plots.embedding_filters(np.array([[[[0.0, -2.0, 1.0]]], [[[4.0, 4.0, 4.0]]]]))
    shown = [np.asarray(axes.images[0].get_array()).ravel().tolist() for axes in figure.axes if axes.images]
    assert shown == [[0.5, 0.0, 0.75], [1.0, 1.0, 1.0]]
    two_channels = plots.embedding_filters(np.array([[[[1.0, 3.0]], [[-3.0, 1.0]]]]))  # the means are 2 and -1
    np.testing.assert_allclose(np.asarray(two_channels.axes[0].images[0].get_array())[:, 0], [[1.0] * 3, [0.25] * 3])


def test_reconstructions_are_beside_their_images():
    gray = np.ones((4, 2, 2, 3), np.uint8) * np.arange(4, dtype=np.uint8)[:, None, None, None]
    images = {"image": gray, "visible": 100 + gray}
    panels = plots.reconstructions(images).axes
    values = [int(axes.images[0].get_array()[0, 0, 0]) if axes.images else None for axes in panels]
    assert values == [0, 100, 1, 101, 2, 102, 3, 103, None, None, None, None]
    assert [axes.get_title() for axes in panels] == ["image", "visible"] * 3 + [""] * 6


def test_reconstructions_have_a_limit_and_curves():
    gray = np.zeros((4, 2, 2, 3), np.uint8)
    panels = plots.reconstructions({"image": gray}, limit=2).axes
    assert [bool(axes.images) for axes in panels] == [True, True, False]
    lines = [{"step": 1, "loss": 0.5, "explained": 0.25}]
    loss, score, *panels = plots.reconstructions({"image": gray}, "a title", metrics=lines).axes
    assert [axes.get_ylabel() for axes in (loss, score)] == ["loss", "explained"] and len(panels) == 6
    assert score.lines[0].get_xydata().tolist() == [[1, 0.25]]


def test_text_stays_text_in_vector_graphics(drawings):
    text = plots.svg(drawings["distance"]).decode()
    assert "mean attention distance (pixels)" in re.sub(r"<[^>]+>", "", text)


@pytest.mark.slow
def test_the_same_figure_gives_the_same_file():
    first, second, other = (plots.svg(plots.attention_distance(np.full((2, 2), x))) for x in (1.0, 1.0, 2.0))
    assert first == second != other


def test_global_matplotlib_settings_are_unchanged():
    import matplotlib

    before = dict(matplotlib.rcParams)
    plots.training_curve([], plots.CLASSIFICATION[0])
    assert dict(matplotlib.rcParams) == before


def captions(names):
    """Captions of a task for images with wrong predictions."""
    return [f"{name} · 50%\n(is {name})" for name in names]


class TestOverlay:
    def test_overlay_has_the_resolution_of_the_image(self):
        assert plots.overlay(IMAGE, np.ones((3, 4))).shape == IMAGE.shape
        assert plots.overlay(IMAGE[..., 0], np.ones((3, 4))).shape == IMAGE.shape

    def test_overlay_of_opacity_zero_is_the_image(self):
        np.testing.assert_array_equal(plots.overlay(IMAGE, np.ones((3, 4)), opacity=0), IMAGE)

    def test_overlay_has_an_opacity_of_three_fifths_by_default(self):
        white, dark = np.full((1, 1, 3), 255, np.uint8), np.array(plots.heat_colors()[0])
        expected = np.round(0.4 * 255 + 0.6 * dark).astype(np.uint8)
        np.testing.assert_array_equal(plots.overlay(white, np.zeros((1, 1)))[0, 0], expected)

    def test_overlay_is_brightest_at_the_largest_weight(self):
        grid = np.zeros((4, 6))
        grid[1, 4] = 0.1  # rows 10 to 20, columns 40 to 50
        light = plots.overlay(np.zeros_like(IMAGE), grid, opacity=1).sum(axis=-1)
        y, x = np.unravel_index(light.argmax(), light.shape)
        assert 10 <= y < 20
        assert 40 <= x < 50
        assert light[35, 5] <= light.max() * 0.02

    def test_overlay_is_linear_between_patch_centers(self):
        grid = np.array([[0.0, 1.0]])
        table = np.asarray(plots.heat_colors())
        image = plots.overlay(np.zeros((1, 8, 3), "uint8"), grid, opacity=1)[0]
        heat = np.array([0, 0, 0.125, 0.375, 0.625, 0.875, 1, 1])  # patches of 4 pixels, centers at 2 and 6
        np.testing.assert_array_equal(image, table[np.round(255 * heat).astype(int)])

    def test_overlay_of_zero_weights_is_finite(self):
        assert np.isfinite(plots.overlay(IMAGE, np.zeros((2, 2)))).all()
        np.testing.assert_array_equal(plots.overlay(IMAGE, -np.ones((2, 2))), plots.overlay(IMAGE, np.zeros((2, 2))))


def test_similarity_maps_are_at_the_positions_of_their_patches():
    similarity = np.random.default_rng(2).uniform(size=(2, 3, 2, 3))
    axes = plots.position_similarity(similarity).axes[0]
    for axis, count in ((axes.yaxis, 2), (axes.xaxis, 3)):
        assert [label.get_text() for label in axis.get_ticklabels()] == [str(number + 1) for number in range(count)]
    drawn = axes.images[0].get_array()
    assert drawn.shape == (2 * 2 + 1, 3 * 3 + 2)  # gaps of one pixel
    np.testing.assert_allclose(drawn[3:5, 8:11], similarity[1, 2])
    assert np.ma.getmaskarray(np.ma.masked_invalid(drawn))[2].all()


def test_every_third_of_many_positions_is_drawn():
    similarity = np.random.default_rng(2).uniform(size=(30, 15, 30, 15))
    axes = plots.position_similarity(similarity).axes[0]
    for axis, shown in ((axes.yaxis, range(2, 31, 3)), (axes.xaxis, range(2, 16, 3))):
        assert [label.get_text() for label in axis.get_ticklabels()] == [str(number) for number in shown]
    drawn = axes.images[0].get_array()
    assert drawn.shape == (10 * (30 + 2) - 2, 5 * (15 + 2) - 2)  # gaps of two pixels
    np.testing.assert_allclose(drawn[2 * 32 : 2 * 32 + 30, 3 * 17 : 3 * 17 + 15], similarity[7, 10])


def test_images_of_any_range_are_converted_to_uint8():
    scaled = np.array([[[-1.0], [1.0]], [[0.0], [-1.0]]])
    assert plots.to_rgb(scaled).tolist() == [[[0] * 3, [255] * 3], [[128] * 3, [0] * 3]]
    assert plots.to_rgb(np.array([[20.0, 300.0]])).tolist() == [[[20] * 3, [255] * 3]]  # pixels, not their range
    assert plots.to_rgb(np.arange(4, dtype=np.uint8).reshape(1, 1, 4)).tolist() == [[[0, 1, 2]]]


@pytest.mark.parametrize(
    ("shape", "start"), [((255, 9, 3), b"\x89PNG"), ((256, 9, 3), b"\xff\xd8\xff"), ((9, 256, 3), b"\xff\xd8\xff")]
)
def test_large_images_are_jpeg(shape, start):
    assert plots.encode_image(np.zeros(shape, "uint8")).startswith(start)


def test_images_are_encoded_losslessly():
    large = np.zeros((300, 20, 3), "uint8")
    encoded = plots.encode_image(large)
    assert encoded.startswith(b"\xff\xd8\xff")  # JPEG
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(encoded))), large)
    encoded = plots.encode_image(IMAGE)
    assert encoded.startswith(b"\x89PNG")
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(encoded)))[..., :3], IMAGE)


def test_missing_matplotlib_names_the_extra(monkeypatch):
    def refuse(name, *arguments):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    assert builtins.__import__("keras_vit.inspection")  # the rest does not need it
    with pytest.raises(ImportError, match=r"pip install 'keras-vision-transformers\[plots\]'"):
        plots.attention_distance(np.ones((2, 2)))
    with pytest.raises(ImportError, match=r"\[plots\]"):
        plots.heat_colors()


@pytest.mark.filterwarnings("ignore:Glyph")
class TestNames:
    """Names of classes and files are the user's own: any character, any length."""

    HOSTILE = (
        r"$\frac{$",
        "a_b^c$",
        "x" * 90,
        "WM" * 9,
        "Ringelblume auf einer Wiese im Garten hinter dem Haus",
        "漢字" * 30,
        "🐈\n\t",
    )

    @staticmethod
    def overlapping(figure):
        """Pairs of titles on one row that overlap, and titles that leave the figure."""
        figure.canvas.draw()
        boxes = [axes.title.get_window_extent() for axes in figure.axes if axes.title.get_text()]
        outside = [box for box in boxes if box.x0 < 0 or box.x1 > figure.bbox.width]
        return [(a, b) for i, a in enumerate(boxes) for b in boxes[i + 1 :] if a.overlaps(b)] + outside

    @pytest.mark.slow
    @pytest.mark.parametrize("ending", ["png", "svg"])
    def test_report_with_hostile_names_is_written(self, ending, tmp_path):
        path = tmp_path / f"report.{ending}"
        count = len(self.HOSTILE)
        plots.draw_report(
            str(path), [], np.zeros((count, 8, 8, 3)), captions(self.HOSTILE), [False] * count, title=self.HOSTILE[0]
        )
        assert path.stat().st_size > 500

    @pytest.mark.slow
    def test_report_keeps_similar_names_apart(self, monkeypatch, tmp_path):
        drawn = []
        monkeypatch.setattr(_matplotlib, "save", lambda figure, path: drawn.append(figure))
        names = [name for name in self.HOSTILE if name.isascii()] * 5
        images = np.zeros((len(names), 8, 8, 3))
        plots.draw_report("report.png", [], images, captions(names), [False] * len(names))
        assert self.overlapping(drawn[0]) == []

    def test_the_best_evaluation_is_marked(self, monkeypatch):
        drawn = []
        monkeypatch.setattr(_matplotlib, "save", lambda figure, path: drawn.append(figure))
        lines = [{"step": step, "eval_accuracy": 0.5 - 0.01 * step} for step in (1, 2)]
        names = self.HOSTILE[:2]
        images = np.zeros((2, 8, 8, 3))
        plots.draw_report("x.png", lines, images, captions(names), [False] * 2, title="9 %" * 40, subtitle="x " * 200)
        assert drawn[0].axes[1].get_title() == "Best evaluation: 49.00% at step 1"
        assert self.overlapping(drawn[0]) == []
        plots.draw_report("x.png", lines[:1], images, captions(names), [False] * 2)
        assert not any(axes.get_xlabel() for axes in drawn[1].axes)  # one step is not a curve

    @pytest.mark.slow
    def test_best_evaluation_of_an_error_metric_is_the_smallest(self, monkeypatch):
        drawn = []
        monkeypatch.setattr(_matplotlib, "save", lambda figure, path: drawn.append(figure))
        lines = [{"step": step, "eval_mae": value} for step, value in ((600, 2.0), (1_200, 1.5), (1_800, 1.75))]
        quantities = plots.CLASSIFICATION[0], Metric("mae", larger_is_better=False)
        images, names = np.zeros((20, 8, 8, 3)), [f"image {number}" for number in range(20)]
        for count, right in ((20, [False] + [True] * 19), (1, [True]), (1, None)):
            plots.draw_report("x.png", lines, images[:count], names, right, quantities)
        headings = [figure.subfigs[2].get_suptitle() for figure in drawn]
        assert headings == ["Evaluation images, mistakes first", "Evaluation images", "Evaluation images"]
        titles = [axes.title for axes in drawn[0].axes[2:]]
        assert [title.get_text() for title in titles] == names[:18]  # three rows of six
        assert titles[0].get_color() != titles[1].get_color() == titles[2].get_color()
        assert drawn[0].axes[1].get_title() == "Best evaluation: 1.5 at step 1,200"

    @pytest.mark.slow
    def test_overlays_keep_similar_names_apart(self):
        names = [name for name in self.HOSTILE if name.isascii()] * 2
        grids = {"rollout": [np.ones((2, 2))] * len(names)}
        figure = plots.attention_overlays([IMAGE] * len(names), grids, [f"{name} · 72 %" for name in names])
        assert self.overlapping(figure) == []
        assert plots.svg(figure)

    def test_probability_is_separate_from_numeric_class_names(self, monkeypatch):
        drawn = []
        monkeypatch.setattr(_matplotlib, "save", lambda figure, path: drawn.append(figure))
        names = ["9 · 72%", "wheat · rye · oats · 72%"]  # the probability is the last part
        plots.draw_report("report.png", [], np.zeros((2, 8, 8, 1)), names, [True, True])
        assert [axes.get_title() for axes in drawn[0].axes[:2]] == ["9 · 72%", "wheat · rye · … · 72%"]


def test_labels_are_shortened():
    assert plots.fit("cat", 10) == "cat"
    assert plots.fit("", 10) == ""
    assert plots.fit("x" * 30, 10) == "x" * 9 + "…"
    assert plots.fit("漢" * 10, 10) == "漢" * 4 + "…"  # each takes two columns
    assert plots.fit("W" * 30, 10) == "W" * 5 + "…"
    assert plots.fit("a\nb\tc", 10) == "a b c"
