"""Write the features of images, before the classification head, to a file.

    keras-vit embed --model=runs/digits images --output=features.npz
    keras-vit embed --model=hf:facebook/dinov2-small '*.jpg' --output=features.parquet

The file contains `names` and `features`, float32 `[N, D]`, with a row for each image. The format is a NumPy archive or
Parquet, which needs pip install 'keras-vision-transformers[parquet]'. The model must return features: a run, a .keras
file, a checkpoint, a SavedModel, or a TFLite file that was exported with --features. With --dense, each row contains
the features of the patches, `[h, w, D]`, after the last block and the final norm. This needs a run, a .keras file or a
checkpoint, and writes a NumPy archive. A row of DINOv2 S/14 at 518 pixels takes 2 MB of memory and disk.

You can stop the program and start it again. Finished parts are kept in OUTPUT.parts until the file is complete, and are
reused if the model, the preprocessing and the images are unchanged. Existing files are not overwritten. Unreadable
images are reported and skipped, and the exit code is 1, or 0 with --on_bad_image=skip.

Several machines share the images: --shard=0/4 to --shard=3/4 are four disjoint parts, each with a separate --output.
--engine=ray works on a Ray cluster and writes a folder of Parquet files; see docs/how_to/many_images.md.
"""

import os
import shutil
import sys
import zipfile
from collections.abc import Sequence

from absl import flags, logging

from keras_vit import cli
from keras_vit.cli import common_flags

common_flags.define_model_flags(class_names=False)
common_flags.define_output_flag("File to write, .npz or .parquet.")
flags.DEFINE_boolean("dense", False, "Whether to write the features of each patch.")
common_flags.define_scale_flags("Images per part. An interruption keeps all finished parts.")
common_flags.define_on_bad_image_flag("error")

with cli.imports(__name__):
    import numpy as np

    from keras_vit.inference import feature_store, image_inputs, open_predictor, tables
    from keras_vit.util import file_io, image_files, locks, storage
    from keras_vit.util.progress import Progress


Columns = dict[str, tuple[str, tuple[int, ...]]]  # dtype and shape by name


def main(argv: Sequence[str]) -> int | None:
    return cli.run_on_ray(argv[1:], features=True) if flags.FLAGS.engine else embed(argv)


@cli.published("output")
def embed(argv: Sequence[str]) -> int:
    options = flags.FLAGS
    output = options.output or ""
    if not output:
        raise ValueError("--output is missing: the file to write, which ends in .npz or .parquet.")
    if not output.endswith((".npz", ".parquet")):
        raise ValueError(f"--output must end in .npz or .parquet. Received: --output={output}.")
    if not argv[1:]:
        raise ValueError("Name at least one image: keras-vit embed --model=DIR --output=FILE '*.jpg'")
    if output.endswith(".parquet"):
        if options.dense:
            raise ValueError(f"--dense needs an --output that ends in .npz. Received: --output={output}.")
        file_io.import_pyarrow()  # raises its error before the work starts
    checks = [tables.check_name] if output.endswith(".parquet") else []
    paths, total = image_files.listed(argv[1:], common_flags.in_shard, *checks)
    if total == 0:
        logging.warning("--shard=%s contains none of the images.", options.shard)
        return 0
    folder, complete = f"{output}.parts", False
    with locks.locked(folder, "--output"):
        try:
            if os.path.exists(output):
                raise FileExistsError(f"--output={output} exists and is not overwritten. Choose another name.")
            parts = open_parts(folder, total)
            rows, longest, shape = 0, 0, ()
            for names, features in parts.rows(image_inputs.of_files(paths), total):
                rows, longest, shape = rows + len(names), max(longest, names.itemsize), features.shape[1:]
                storage.upload(output, growing=True)
            if not rows:
                raise ValueError("None of the images can be read.")
            columns: Columns = {"names": (f"U{longest // 4}", (rows,)), "features": ("f4", (rows, *shape))}
            with file_io.atomic_file(output) as temporary, Progress(f"Writing {output}"):
                write = write_parquet if output.endswith(".parquet") else write_npz
                write(temporary, parts.files, columns, feature_store.origin(parts.predictor))
            complete = True
        finally:
            if complete or not feature_store.finished(folder):
                shutil.rmtree(folder, ignore_errors=True)  # the folder stays if another process locks it now
    failed = parts.num_images - rows
    logging.info("%d images, %s features each", rows, " x ".join(map(str, shape)))
    sys.stdout.write(f"{output}\n")
    if failed:
        logging.warning("%d of %d images could not be read", failed, parts.num_images)
    return 1 if failed and options.on_bad_image == "error" else 0


def open_parts(folder: str, total: int | None) -> feature_store.FeatureParts:
    """Open the model and return the parts in a folder."""
    options = flags.FLAGS
    predictor = open_predictor(options.model, **common_flags.model_options())
    if predictor.features_unavailable:
        raise ValueError(f"--model must return features: {predictor.features_unavailable}.")
    if total is None or total > 100 * options.batch_size:
        predictor.prepare_for_many()
    return feature_store.FeatureParts(
        folder, predictor, part_size=options.part_size, batch_size=options.batch_size, dense=options.dense
    )


def write_npz(path: str, files: Sequence[str], columns: Columns, origin: str) -> None:
    """Write the rows of all parts to a NumPy archive. `columns` are the dtypes and shapes by name."""
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open(f"{feature_store.ORIGIN}.npy", "w") as member:
            np.lib.format.write_array(member, np.array(origin), allow_pickle=False)
        for name, (dtype, shape) in columns.items():
            header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as column:
                np.lib.format.write_array_header_2_0(column, header)
                for file in files:
                    values = getattr(feature_store.read(file), name)
                    column.write(values.astype(dtype).tobytes())


def write_parquet(path: str, files: Sequence[str], columns: Columns, origin: str) -> None:
    """Write the rows of all parts to a Parquet file, with a row group for each part."""
    pyarrow = file_io.import_pyarrow()
    features = pyarrow.list_(pyarrow.float32(), columns["features"][1][-1])
    schema = pyarrow.schema({"names": pyarrow.string(), "features": features}, {feature_store.ORIGIN: origin})
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for file in files:
            rows = feature_store.read(file)
            values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.features.ravel()), type=features)
            writer.write_table(pyarrow.table([rows.names.tolist(), values], schema=schema))


if __name__ == "__main__":
    cli.run(main)
