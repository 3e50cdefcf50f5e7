"""Copies of images, with one folder per class."""

import collections
import filecmp
import itertools
import os
import re
import shutil
from collections.abc import Sequence

from keras_vit.util import file_io

_UNSAFE = re.compile(r'^\.|[\x00-\x1f/\\:*?"<>|]')  # in names of folders, on any system
_LONGEST = 200  # bytes


def folder_names(classes: Sequence[str], reserved: str = "") -> dict[str, str]:
    """Return a unique name for the folder of each class, which every file system accepts.

    Example:
    >>> folder_names(("cat", "Cat", "AC/DC"))
    {'cat': 'cat-0', 'Cat': 'Cat-1', 'AC/DC': 'AC_DC'}
    """
    safe = [_UNSAFE.sub("_", name.strip()).encode()[:_LONGEST].decode(errors="ignore") or "_" for name in classes]
    count = collections.Counter(name.casefold() for name in (*safe, reserved))
    pairs = enumerate(zip(classes, safe, strict=True))
    return {name: f"{text}-{index}" if count[text.casefold()] > 1 else text for index, (name, text) in pairs}


def copy_to(path: str, folder: str) -> None:
    """Copy a file to a folder. If the folder has another file with that name, append a number to the name.

    If the folder already has a file with this name and the same content, nothing is copied.
    """
    file_io.make_directory(folder)
    stem, extension = os.path.splitext(os.path.basename(path))
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    for target in (os.path.join(folder, name + extension) for name in names):
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL, 0o666))  # reserves the name before the content is written
        except FileExistsError:
            if os.path.isfile(target) and filecmp.cmp(path, target, shallow=False):
                return
            continue
        try:
            with file_io.atomic_file(target) as temporary:
                shutil.copyfile(path, temporary)
        except BaseException:
            os.unlink(target)
            raise
        return
