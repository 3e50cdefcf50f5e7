"""Files of a data set's folders, local or remote."""

from collections.abc import Iterable

import tensorflow as tf

from keras_vit.util import file_io, image_files

EXTENSIONS = image_files.EXTENSIONS


class Tree(image_files.Tree):
    """The visible files and folders below a root, which is a folder or an address such as `gs://bucket/images`."""

    def entries(self, folder: str) -> Iterable[tuple[str, str]]:
        """Yield the name and the kind of each entry of a folder."""
        if not file_io.is_remote(folder):
            yield from super().entries(folder)
            return
        for name in tf.io.gfile.listdir(folder):
            name = name.rstrip("/")
            yield name, "folder" if tf.io.gfile.isdir(f"{folder}/{name}") else "file"
