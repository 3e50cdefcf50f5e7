"""Sources whose labels are masks: PNG files of class indices beside their images."""

import io
import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import data
from keras_vit.data import masks, preprocess
from keras_vit.data.labels import check_masks
from tests.data import example_images
from train.datasets import audit, writer

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (12, 20, 3), np.uint8)


def png(indices, bits=8, palette=False, **options):
    """Encode class indices; Pillow chooses 1, 2, 4 or 8 bits by the number of colors of a palette."""
    image = Image.fromarray(indices.astype(np.uint16 if bits == 16 else np.uint8))
    if palette:
        image = Image.fromarray(indices.astype(np.uint8), "P")
        image.putpalette(RNG.integers(0, 256, 3 * 2**bits).astype(np.uint8).tobytes())
        options["bits"] = bits
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


@pytest.mark.parametrize("transparency", [None, b"\0\xff", b"\1\2\3"])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_palette_masks_give_palette_indices(bits, transparency):
    indices = RNG.integers(0, 2**bits - (bits == 8), (5, 13))
    options = {} if transparency is None else {"transparency": transparency}
    encoded = png(indices, bits, palette=True, **options)
    assert encoded[24:26] == bytes([bits, 3])
    np.testing.assert_array_equal(masks.decode(encoded, 255), indices)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(encoded))), indices)


@pytest.mark.parametrize(("bits", "classes", "expected"), [
    (8, 255, {0: 0, 254: 254, 255: 255}),
    (8, 256, {0: 0, 255: 255}),
    (16, 7, {6: 6, 255: 255, 65535: 255}),
    (16, 300, {255: 255, 299: 299, 65535: 65535}),
    (16, 65535, {65534: 65534, 65535: 65535}),
])  # fmt: skip
def test_ignored_pixels_never_equal_a_class_index(bits, classes, expected):
    decoded = masks.decode(png(np.array([list(expected)]), bits), classes)
    assert decoded.dtype == tf.int32 and decoded.numpy().tolist() == [list(expected.values())]


@pytest.mark.parametrize("classes", [7, 255, 256, 300])
def test_encoded_masks_round_trip(classes):
    mask = RNG.integers(0, classes, (9, 5))
    mask[0, 0] = masks.ignored(classes)
    encoded = masks.encode(mask, classes).numpy()
    np.testing.assert_array_equal(masks.decode(encoded, classes), mask)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(encoded))), mask)


@pytest.mark.parametrize(("encoded", "classes", "problem"), [
    (example_images.encode(IMAGE, "PNG"), 9, "m.png has colors"),
    (example_images.encode(IMAGE[..., 0], "JPEG"), 9, "m.png must be a PNG"),
    (b"", 9, "m.png must be a PNG"),
    (png(IMAGE[..., 0])[:90], 255, "PNG"),
    (png(IMAGE[..., 0])[:20], 255, "m.png is incomplete"),
    (png(np.array([[0, 1], [7, 255]])), 7, "m.png has the index 7"),
    (png(np.array([[0, 1], [7, 255]]), 16), 7, "m.png has the index 7"),
    (png(np.array([[0, 1], [2, 3]]), 2, palette=True), 3, "m.png has the index 3"),
])  # fmt: skip
def test_invalid_mask_is_refused_with_its_name(encoded, classes, problem):
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)" + problem.replace(" ", ".*")):
        masks.decode(tf.constant(encoded), classes, origin="m.png")


def test_a_mask_of_too_many_pixels_is_refused_by_its_header():
    huge = png(IMAGE[..., 0])
    huge = huge[:16] + (2**31 - 1).to_bytes(4, "big") + (2**31 - 1).to_bytes(4, "big") + huge[24:]
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than"):
        masks.decode(tf.constant(huge), 255)


@pytest.mark.parametrize("classes", [7, 300])
def test_pixels_from_outside_are_ignored_for_any_number_of_classes(classes):
    """255 is the index of a class of 300."""
    mask = np.array([[0, min(255, classes - 1)], [classes - 1, masks.ignored(classes)]])
    padded = masks.processed(preprocess.host_function("pad(1)"), classes)({"image": IMAGE[:2, :2], "mask": mask})
    expected = np.pad(mask, 1, constant_values=masks.ignored(classes))
    assert padded["mask"].dtype == tf.int32
    np.testing.assert_array_equal(padded["mask"], expected)


def write(root, shapes=((12, 20),) * 10, splits=("",), suffix="png"):
    """Write images whose red channel is ten times their mask, in folders of splits; return the folders."""
    for split in splits:
        for folder in ("images", "masks"):
            (root / folder / split / "deep").mkdir(parents=True, exist_ok=True)
        for number, shape in enumerate(shapes):
            mask = RNG.integers(0, 4, shape)
            image = np.stack([10 * mask, *RNG.integers(0, 256, (2, *shape))], -1).astype(np.uint8)
            name = f"deep/{number}.png" if number % 2 else f"{number}.png"
            (root / "images" / split / name).with_suffix(f".{suffix}").write_bytes(example_images.encode(image, "PNG"))
            (root / "masks" / split / name).write_bytes(png(mask, palette=number % 3 == 0))
    (root / "masks/classes.txt").write_text("sky\ngrass\ntree\ncow\n")
    return f"folder:{root}/images#masks={root}/masks"


def test_mask_folders_are_read(tmp_path):
    spec = write(tmp_path, suffix="PNG")
    (tmp_path / "masks/0.png").rename(tmp_path / "masks/0.PNG")
    assert data.split_sizes(spec) == {"train": 8, "test": 2, "all": 10}
    source = data.open_source(spec, "all")
    assert (source.label_kind, source.class_names, source.notes) == ("mask", ("sky", "grass", "tree", "cow"), ())
    for example in source.examples():
        assert example.keys() == {"image", "mask"} and example["mask"].dtype == tf.int32
        np.testing.assert_array_equal(10 * example["mask"], tf.io.decode_png(example["image"])[..., 0])
    again = {path for split in ("train", "test") for path in data.open_source(spec, split).paths}
    assert again == set(source.paths)
    (tmp_path / "masks").rename(tmp_path / "images" / "masks")  # masks in the folder of the images are not images
    inside = data.open_source(f"folder:{tmp_path}/images#masks={tmp_path}/images/masks", "all")
    assert sorted(inside.paths) == sorted(source.paths) and not inside.notes
    for folder, file in (("masks of cows", "2.PNG"), ("masks/masks of cows", "2.png")):
        (tmp_path / "images" / folder).mkdir()
        shutil.copy(tmp_path / "images" / ("masks" * (file == "2.png")) / file, tmp_path / "images" / folder / file)
    inside = data.open_source(f"folder:{tmp_path}/images#masks={tmp_path}/images/masks", "all")
    assert inside.num_examples == 11 and not inside.notes


def test_mask_folders_of_splits_are_read(tmp_path):
    spec = write(tmp_path, splits=("training", "val"))
    assert data.split_sizes(spec) == {"train": 10, "validation": 10}
    assert all("/val/" in path for path in data.open_source(spec, "test").mask_paths)
    (tmp_path / "masks/val").rename(tmp_path / "masks/other")
    with pytest.raises(ValueError, match="need the folders.*images/val.*Received: .*masks/training in"):
        data.open_source(spec)


@pytest.mark.slow
@pytest.mark.parametrize("pp", ["decode|resize_small(12)|random_crop(10)|flip_lr|value_range(-1, 1)"])
def test_batches_of_images_and_masks_are_reproducible_and_aligned(tmp_path, pp):
    """A batch has the same content when training resumes and on several workers, and masks move with images."""
    source = data.open_source(write(tmp_path), "all")
    batches = list(data.train_batches(source, pp, 4, seed=1).take(6))
    assert batches[0].keys() == {"image", "mask"}
    for batch in batches:
        assert batch["mask"].dtype == tf.int32 and batch["mask"].shape == (4, 10, 10)
        np.testing.assert_array_equal(10 * batch["mask"], batch["image"][..., 0])
    resumed = next(iter(data.train_batches(source, pp, 4, seed=1, start_step=5)))
    second = next(iter(data.train_batches(source, pp, 4, seed=1, start_step=5, shard_index=1, num_shards=2)))
    np.testing.assert_array_equal(resumed["mask"], batches[5]["mask"])
    np.testing.assert_array_equal(second["mask"], batches[5]["mask"][2:])
    evaluated = list(data.eval_batches(source, "decode|resize((12, 20))", 4))
    assert [batch["valid"].numpy().tolist() for batch in evaluated][2] == [1, 1, 0, 0]
    np.testing.assert_array_equal(evaluated[0]["mask"][0], next(source.examples())["mask"])
    images, targets = next(iter(data.eval_batches(source, "decode|resize(8)", 3, as_tuples=True)))
    assert images.shape == (3, 8, 8, 3) and targets.shape == (3, 8, 8)
    with pytest.raises(ValueError, match="mixup"):
        data.train_batches(source, pp, 4, mixup=0.2)


@pytest.mark.slow
def test_invalid_masks_raise_an_error_or_are_skipped(tmp_path):
    """A run stops with the names of the files, or leaves the example out."""
    source = data.open_source(write(tmp_path), "all")
    problems = {
        0: (png(np.zeros((20, 12))), "of the size of its image"),
        1: (example_images.encode(IMAGE, "PNG"), "has colors"),
        2: (png(np.full((12, 20), 4)), "has the index 4"),
        3: (None, "No such file"),
    }
    for number, (content, problem) in problems.items():
        path = pathlib.Path(source.mask_paths[number])
        path.write_bytes(content) if content else path.unlink()
        single = data.open_source(source.name + f"#masks={tmp_path}/masks", f"all[{number}:{number + 1}]")
        with pytest.raises(data.UnreadableImageError, match=source.paths[number]) as caught, data.image_errors():
            list(data.eval_batches(single, "decode|resize(8)", 2))
        assert problem in str(caught.value) and (number == 0 or str(path) in str(caught.value))
    log = data.BadImageLog()
    (batch,) = data.eval_batches(source, "decode|resize(8)", 10, on_bad_image=log)
    assert batch["valid"].numpy().tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1] and list(log.reasons) == source.paths[:4]
    assert any("without a mask" in note for note in single.notes)


@pytest.mark.parametrize(("options", "expected"), [
    ("&classes=4", ("0", "1", "2", "3")),
    ("&classes=a,b,c,d", tuple("abcd")),
    ("&classes=['a','b']", tuple("ab")),
    ("", ("sky", "grass", "tree", "cow")),
])  # fmt: skip
def test_class_names_of_masks_are_read(tmp_path, options, expected):
    spec = write(tmp_path)
    assert data.open_source(spec + options).class_names == expected


def test_masks_without_class_names_are_refused(tmp_path):
    spec = write(tmp_path)
    for classes in ("a,a", "0", "70000", "a,,b"):
        with pytest.raises(ValueError, match="classes"):
            data.open_source(f"{spec}&classes={classes}")
    (tmp_path / "masks/classes.txt").unlink()
    with pytest.raises(ValueError, match="classes"):
        data.open_source(spec)


def test_an_offset_ignores_the_index_zero(tmp_path):
    source = data.open_source(write(tmp_path) + "&classes=3&label_offset=-1", "all")
    for example in source.examples():
        shifted = tf.io.decode_png(example["image"])[..., 0].numpy() // 10
        np.testing.assert_array_equal(example["mask"], np.where(shifted == 0, data.IGNORED, shifted - 1))
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)index.*4.*the last of the 3 classes is 3"):
        masks.decode(png(np.array([[3, 4]])), 3, offset=-1)


def test_pixels_of_255_are_ignored_unless_they_are_a_class(tmp_path, caplog):
    """255 is ignored, unless it is the foreground."""
    source = data.open_source(write(tmp_path), "all")
    for path in source.mask_paths:
        pathlib.Path(path).write_bytes(png(np.array([[0, 255] * 10] * 12)))
    spec = f"{source.name}#masks={tmp_path}/masks&classes=lesion,other"
    with pytest.raises(ValueError, match="with lesion and 50.0% ignored.*#foreground=255"):
        check_masks(data.open_source(spec, "all"))
    source = data.open_source(f"{spec},third&foreground=255", "all")
    assert next(source.examples())["mask"].numpy()[0, :4].tolist() == [0, 1, 0, 1]
    check_masks(source)
    assert "Classes without pixels in 10 of 10 masks" in caplog.text and caplog.text.rstrip().endswith(": third.")
    with pytest.raises(ValueError, match="foreground"):
        data.open_source(spec, "all", foreground=0)
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 4, 4), np.uint8), masks=np.full((2, 4, 4), 255))
    with pytest.raises(ValueError, match="with no class and 100.0% ignored"):
        check_masks(data.open_source(f"npz:{tmp_path}/a.npz", "all", class_names=["a", "b"]))


def test_masks_of_other_formats_are_reported(tmp_path):
    source = data.open_source(write(tmp_path), "all")
    path = pathlib.Path(source.mask_paths[0])
    path.with_suffix(".jpg").write_bytes(example_images.encode(IMAGE[..., 0], "JPEG"))
    path.unlink()
    notes = data.open_source(f"{source.name}#masks={tmp_path}/masks", "all").notes
    assert any("PNG" in note and str(path.with_suffix(".jpg")) in note for note in notes)


def test_mismatched_image_and_mask_folders_are_refused(tmp_path):
    spec = write(tmp_path)
    (tmp_path / "masks/9.png").write_bytes(b"")
    assert any("9.png" in note for note in data.open_source(spec).notes)
    (tmp_path / "images/0.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"extension. Received: 0\."):
        data.open_source(spec)
    (tmp_path / "empty").mkdir()
    for images, drawn in (("empty", "masks"), ("images", "empty"), ("images", "images")):
        with pytest.raises(ValueError, match="Images and masks of the same names|more than their extension"):
            data.open_source(f"folder:{tmp_path}/{images}#masks={tmp_path}/{drawn}&classes=4")
    with pytest.raises(FileNotFoundError):
        data.open_source(f"folder:{tmp_path}/images#masks={tmp_path}/none&classes=4")


def check_examples(source, count=10):
    """Compare masks with the red channels of their images."""
    examples = list(source.examples())
    assert source.label_kind == "mask" and source.num_classes == 4 and len(examples) == count
    for example in examples:
        image = example["image"]
        red = (tf.io.decode_png(image) if image.dtype == tf.string else image)[..., 0]
        np.testing.assert_array_equal(10 * example["mask"], red)
    batch = next(iter(data.train_batches(source, "decode|resize_small(12)|random_crop(10)|flip_lr", 4)))
    np.testing.assert_array_equal(10 * batch["mask"], batch["image"][..., 0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["list.csv", "list.jsonl"])
def test_masks_are_read_from_manifests(tmp_path, name):
    write(tmp_path)
    rows = [{"path": f"images/{n}.png", "mask": f"masks/{n}.png", "split": "a" if n else "b"} for n in range(0, 10, 2)]
    rows += [{**rows[0], "split": "a"}]
    if name == "list.csv":
        lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    else:
        lines = list(map(json.dumps, rows))
    (tmp_path / name).write_text("\n".join(lines))
    spec = f"manifest:{tmp_path}/{name}"
    with pytest.raises(ValueError, match="classes"):
        data.open_source(spec, "a")
    assert data.open_source(f"{spec}#classes=4", "b").num_examples == 1
    (tmp_path / "masks/classes.txt").rename(tmp_path / "classes.txt")
    check_examples(data.open_source(spec, "a+b"), 6)
    (tmp_path / name).write_text("\n".join([*lines, lines[-1].replace("masks/0.png", "")]))
    with pytest.raises(ValueError, match="Line 8|Line 7"):
        data.open_source(spec, "a")


@pytest.mark.slow
@pytest.mark.parametrize("classes", [4, 300])
def test_masks_round_trip_through_tfrecords(tmp_path, classes):
    """Indices keep their values, and so do those above 255 and ignored pixels."""
    spec = write(tmp_path) + f"&classes={classes}"
    source = data.open_source(spec, "all")
    mask = RNG.integers(0, classes, (12, 20))
    mask[0, 0] = masks.ignored(classes)
    pathlib.Path(source.mask_paths[0]).write_bytes(png(mask, 16))
    writer.write_tfrecords(source, str(tmp_path / "records"), "all", num_shards=2)
    written = data.open_source(f"tfrecord:{tmp_path}/records", "all")
    assert (written.label_kind, written.class_names) == ("mask", source.class_names)
    before, after = ({tf.io.serialize_tensor(e["mask"]).numpy() for e in s.examples()} for s in (source, written))
    assert before == after
    (tmp_path / "records/dataset_info.json").unlink()
    options = f"label_kind=mask&num_classes={classes + 1}&label_offset=1"
    by_name = data.open_source(f"tfrecord:{tmp_path}/records#{options}", "all")
    assert max(example["mask"].numpy().max() for example in by_name.examples()) == masks.ignored(classes + 1)
    with pytest.raises(ValueError, match="mask"):
        written.labels()
    pathlib.Path(source.mask_paths[1]).write_bytes(png(np.zeros((20, 12))))
    with pytest.raises(data.UnreadableImageError, match="size of its image"):
        writer.write_tfrecords(source, str(tmp_path / "bad"), "all", num_shards=2)


@pytest.mark.slow
def test_masks_are_read_from_npz(tmp_path):
    drawn = RNG.integers(0, 4, (10, 12, 20)).astype(np.uint8)
    drawn[0, 0, 0] = 3
    images = np.stack([10 * drawn] * 3, -1)
    spec, path = f"npz:{tmp_path}/arrays.npz", tmp_path / "arrays.npz"
    np.savez(path, images=images, masks=drawn)
    check_examples(data.open_source(spec, "all"))
    drawn[0, 0, 0] = data.IGNORED
    np.savez(path, images=images, masks=drawn.astype(np.int64), class_names=list("abcd"))
    assert next(data.open_source(spec, "all").examples())["mask"][0, 0] == data.IGNORED
    for wrong in (drawn[:, :5], drawn.astype(np.float32), drawn.astype(np.int64) - 1, drawn.astype(np.int64) + 2**32):
        np.savez(path, images=images, masks=wrong, class_names=list("abcd"))
        with pytest.raises(ValueError, match="mask"):
            data.open_source(spec, "all")
    drawn[0, 0, 0] = 4
    np.savez(path, images=images, masks=drawn, class_names=list("abcd"))
    with pytest.raises(ValueError, match="index 4"):
        data.open_source(spec, "all")


@pytest.mark.slow
def test_check_data_reports_shares_of_pixels_and_invalid_masks(tmp_path):
    """Shares are of pixels, ignored ones are counted apart, and a mask that does not fit is listed."""
    source = data.open_source(write(tmp_path), "all")
    for number, mask in enumerate([np.full((12, 20), 2), np.full((12, 20), 255), np.zeros((20, 12))]):
        pathlib.Path(source.mask_paths[number]).write_bytes(png(mask))
    reports = audit.audit(source)
    assert [report.origin for report in reports if report.problem] == source.paths[2:3]
    assert reports[0].label == (2,) and reports[0].pixels == (240, 0)
    assert reports[1].label == () and reports[1].pixels == (240,)
    assert audit.pixel_shares(reports[:3], 4) == [0, 0, 0.5, 0, 0.5]
    assert audit.count_classes(reports[:3], 4) == [0, 0, 1, 0]
    png_file, names = audit.contact_sheet(source, "decode|resize(8)|value_range(-1, 1)", count=4)
    assert tf.io.decode_png(png_file).shape == (20, 20, 3) and len(names[0]) == 2
