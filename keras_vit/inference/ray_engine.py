"""Prediction of many images with Ray Data: a class for `map_batches`, and a folder of Parquet files."""

import contextlib
import functools
import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.inference import image_batches, tables
from keras_vit.inference.image_inputs import NamedImage
from keras_vit.inference.opening import open_predictor
from keras_vit.util import extras, file_io, image_files
from keras_vit.util.progress import Progress

_STORES = (".tar", ".parquet")  # files with many images
_IMAGES = ("image", "bytes", "content", "jpg", "jpeg", "png", "webp")  # columns with encoded images
_NAMES = ("path", "names", "__key__")  # columns with the names of the images
_KEY = b"keras_vit"  # entry in the metadata of a file
_MAX_BLOCKS = 10_000
_ROWS = 1024  # rows of a row group
_DRAFT = ".writing-"  # beginning of an unfinished file, which readers of a folder ignore


class RayPredictor:
    """Predictor for `ray.data.Dataset.map_batches`, and for other engines that call a class with columns.

    Each worker opens the model once. The class itself does not need Ray.

    Args:
        model: Path or name of a model, see `keras_vit.open_predictor`.
        features: Whether to return features instead of predictions.
        batch_size: Images per call of the model.
        top_k: Number of classes in the result, for a model with classes.
        **settings: Other arguments of `open_predictor`.

    Example:
    >>> predict = keras_vit.inference.RayPredictor("runs/digits", top_k=2)
    >>> found = predict({"path": ["cat.png"], "bytes": [open("images/cat.png", "rb").read()]})
    >>> list(found)
    ['path', 'label', 'probability', 'label_2', 'probability_2', 'uncertainty', 'error', 'model']
    """

    def __init__(self, model: str, *, features: bool = False, batch_size: int = 64, top_k: int = 5, **settings: Any):
        self.predictor = open_predictor(model, **settings)
        self.predictor.prepare_for_many()
        if features and self.predictor.features_unavailable:
            raise ValueError(f"model must return features: {self.predictor.features_unavailable}.")
        self.features, self.batch_size, self.top_k = features, batch_size, top_k
        self.key = tables.model_key(self.predictor.card)
        self.columns: dict[str, type] = {"names": str, "features": list, "error": str, "model": str}
        if not features:
            self.columns = tables.columns_of(self.predictor.card, top_k)

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Return the columns of `keras-vit predict --output`, or the features and their errors.

        Args:
            batch: Columns: encoded images, named image, bytes, content, jpg, jpeg, png or webp, and optionally their
                names, as path, names or `__key__`.
        """
        contents = batch[_chosen(_IMAGES, batch)]
        key = next((name for name in _NAMES if name in batch), None)
        names = range(len(contents)) if key is None else batch[key]
        images = (NamedImage(str(n), functools.partial(_bytes, c)) for n, c in zip(names, contents, strict=True))
        rows = list(self.rows(images))
        found: dict[str, Any] = {name: [row[name] for row in rows] for name in self.columns}
        if self.features:  # NaN for unreadable images
            width = next((len(row) for row in found["features"] if row is not None), 0)
            unreadable = np.full(width or self._width, np.nan, np.float32)
            found["features"] = np.array([unreadable if row is None else row for row in found["features"]], np.float32)
        return found

    @functools.cached_property
    def _width(self) -> int:
        """Number of features of an image."""
        card = self.predictor.card
        blank = np.zeros((1, *card.image_shape), "uint8" if card.input_dtype == "uint8" else "float32")
        return self.predictor.features(blank).shape[-1]

    def rows(self, images: Iterator[NamedImage]) -> Iterator[tables.Row]:
        """Yield the row of each image."""
        if not self.features:
            for found in self.predictor.predict_each(images, self.batch_size, self.top_k):
                yield tables.row_of(found, self.predictor.card, self.columns, self.key)
            return
        for found in self.predictor.features_each(images, self.batch_size):
            yield {"names": found.name, "features": found.output, "error": found.error or None, "model": self.key}


class PartitionWriter(RayPredictor):
    """Predictor that writes a Parquet file for each list of images.

    A finished file is not written again if its metadata has the same model and images.
    """

    def __init__(self, folder: str, model: str, **options: Any):
        super().__init__(model, **options)
        self.folder = folder

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Write the files of the column `file` for the images of the column `images`, a list in JSON.

        Returns the number of rows and of unreadable images of each file.
        """
        counts = [self.write(*pair) for pair in zip(batch["file"], map(json.loads, batch["images"]), strict=True)]
        return {"rows": [rows for rows, _ in counts], "unreadable": [unreadable for _, unreadable in counts]}

    def write(self, file: str, paths: Sequence[str]) -> tuple[int, int]:
        """Write a file for images or for files of images, and return the numbers of rows and of unreadable images."""
        pyarrow = file_io.import_pyarrow()
        files, fs_path = _located(f"{self.folder}/{file}")
        key = hashlib.sha256(json.dumps([self.key, self.features, self.top_k, paths]).encode()).hexdigest()
        if files.get_file_info(fs_path).is_file:
            errors = pyarrow.parquet.read_table(fs_path, columns=["error"], filesystem=files)
            if (errors.schema.metadata or {}).get(_KEY) == key.encode():
                return len(errors), len(errors) - errors["error"].null_count
        kinds = {str: pyarrow.string(), float: pyarrow.float64(), list: pyarrow.list_(pyarrow.float32())}
        schema = pyarrow.schema([(name, kinds[kind]) for name, kind in self.columns.items()], {_KEY: key})
        draft = f"{os.path.dirname(fs_path)}/{_DRAFT}{secrets.token_hex(4)}-{file}"
        count, unreadable = 0, 0
        try:
            with (
                tempfile.TemporaryDirectory() as temporary,
                pyarrow.parquet.ParquetWriter(draft, schema, filesystem=files) as writer,
            ):
                for rows in image_batches.chunks(self.rows(_images(paths, temporary)), _ROWS):
                    columns = [pyarrow.array([row[n] for row in rows], schema.field(n).type) for n in schema.names]
                    writer.write_table(pyarrow.table(columns, schema=schema))
                    count, unreadable = count + len(rows), unreadable + sum(row["error"] is not None for row in rows)
        except BaseException:
            with contextlib.suppress(OSError):
                files.delete_file(draft)
            raise
        files.move(draft, fs_path)
        return count, unreadable


def run(
    images: Iterable[str],
    folder: str,
    *,
    part_size: int,
    address: str | None = None,
    workers: int | None = None,
    **options: Any,
) -> tuple[int, int]:
    """Write a folder of Parquet files, each with the rows of `part_size` images, or of a tar or Parquet file.

    Args:
        images: Paths or URLs of images, and of tar and Parquet files with images.
        folder: Folder or URL to write to. Finished files are kept.
        part_size: Images per file.
        address: Network address of a Ray cluster; by default, Ray starts on this machine.
        workers: Number of workers; by default one for each GPU or, without GPUs, for each machine.
        **options: Arguments of `PartitionWriter`.

    Returns:
        The numbers of rows and of unreadable images.
    """
    with extras.needed("ray", "--engine=ray needs Ray"):
        import ray.data
    parts = [json.dumps(part) for part in _parts(images, part_size)]
    items = [{"file": f"part-{number:06d}.parquet", "images": part} for number, part in enumerate(parts)]
    files, fs_path = _located(folder)
    files.create_dir(fs_path)
    found = files.get_file_info(file_io.import_pyarrow().fs.FileSelector(fs_path))
    for draft in (file.path for file in found if file.base_name.startswith(_DRAFT)):  # of a killed worker
        files.delete_file(draft)
    others = {file.base_name for file in found if file.extension == "parquet" and file.base_name[0] != "."}
    if others := others - {item["file"] for item in items}:
        raise ValueError(
            f"The files in {folder!r} must be the results of the same images. Received: "
            f"{', '.join(sorted(others)[:5])}. Choose another folder, or remove the files."
        )
    if not ray.is_initialized():
        ray.init(address)
    gpus = int(ray.cluster_resources().get("GPU", 0))
    data = ray.data.from_items(items, override_num_blocks=min(len(items), _MAX_BLOCKS)).map_batches(
        PartitionWriter,
        fn_constructor_args=(folder,),
        fn_constructor_kwargs=options,
        batch_size=1,
        num_gpus=1 if gpus else 0,
        concurrency=workers or gpus or len(ray.nodes()),
    )
    count, unreadable = 0, 0
    with Progress("Files", len(items), unit="files") as progress:
        for row in data.iter_rows():
            count, unreadable = count + row["rows"], unreadable + row["unreadable"]
            progress.add(1)
    return count, unreadable


def _parts(paths: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield lists of `size` images, and each file of images by itself."""
    images: list[str] = []
    for path in paths:
        if path.endswith(_STORES):
            yield [path]
            continue
        images.append(path)
        if len(images) == size:
            yield images
            images = []
    if images:
        yield images


def listed(names: Sequence[str]) -> Iterator[str]:
    """Yield the paths and URLs of images, tar files and Parquet files. A URL may be a folder."""
    local = [name for name in names if not file_io.is_remote(name)]
    yield from map(os.path.abspath, image_files.each(local, tables.check_name))
    for name in filter(file_io.is_remote, names):
        files, fs_path = _located(name)
        if files.get_file_info(fs_path).is_file:
            yield name
            continue
        for file in files.get_file_info(file_io.import_pyarrow().fs.FileSelector(fs_path, recursive=True)):
            if file.path.lower().endswith((*image_files.EXTENSIONS, *_STORES)):
                yield name.rstrip("/") + file.path.removeprefix(fs_path.rstrip("/"))


def _located(path: str) -> tuple[Any, str]:
    """Return PyArrow's file system of an absolute path or a URL, and the path in it."""
    return file_io.import_pyarrow().fs.FileSystem.from_uri(path)


def _images(paths: Iterable[str], temporary: str) -> Iterator[NamedImage]:
    """Yield the images at the paths, and in tar and Parquet files.

    Remote tar and Parquet files are copied to a folder first: an error of the network does not look like damage.
    """
    for path in paths:
        if not path.endswith(_STORES):
            yield NamedImage(path, functools.partial(_read, *_located(path)))
            continue
        local = path
        if file_io.is_remote(path):
            local = os.path.join(temporary, "images")
            file_io.import_pyarrow().fs.copy_files(path, local)
        yield from _readable(path, (_of_tar if path.endswith(".tar") else _of_parquet)(path, local))


def _readable(path: str, images: Iterator[NamedImage]) -> Iterator[NamedImage]:
    """Yield the images in a file up to the place where it is damaged, then an image with the error."""
    try:
        yield from images
    except (ValueError, OSError) as error:
        problem = OSError(str(error))

        def read() -> bytes:
            raise problem

        yield NamedImage(path, read)


def _of_tar(path: str, local: str) -> Iterator[NamedImage]:
    from keras_vit.data.readers import tar  # imports TensorFlow

    for member in tar.members(local):
        if member.name.lower().endswith(image_files.EXTENSIONS):
            yield NamedImage(f"{path}/{member.name}", member.read)


def _read(files: Any, fs_path: str) -> bytes:
    with files.open_input_stream(fs_path) as stream:
        return stream.read()


def _of_parquet(path: str, local: str) -> Iterator[NamedImage]:
    """Yield the images in a column of bytes, or of Hugging Face's structures of bytes and path."""
    file = file_io.import_pyarrow().parquet.ParquetFile(local)
    names = [name for name in _NAMES if name in file.schema_arrow.names][:1]
    column, number = _chosen(_IMAGES, file.schema_arrow.names), 0
    for batch in file.iter_batches(64, columns=[column, *names]):
        for row in batch.to_pylist():
            image = row[column] if isinstance(row[column], dict) else {"bytes": row[column]}
            name = row[names[0]] if names else image.get("path") or None
            yield NamedImage(
                f"{path}/{number}" if name is None else str(name), functools.partial(_bytes, image["bytes"])
            )
            number += 1


def _chosen(names: Sequence[str], columns: Iterable[str]) -> str:
    for name in names:
        if name in columns:
            return name
    raise ValueError(f"Expected one of the columns {', '.join(names)}. Received: {', '.join(map(str, columns))}.")


def _bytes(content: Any) -> bytes:
    return bytes(content or b"")
