"""Search for image files in folders, glob patterns and lists."""

import collections
import contextlib
import glob
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence

from absl import logging

from keras_vit.util import file_io

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".jpe", ".jfif")
MAX_DEPTH = 100
_AT_ONCE = 100_000  # paths
# Folders that file servers and operating systems create, in lower case.
SYSTEM = (
    *("@eadir", "@tmp", "@recycle", "@recently-snapshot", "@sharebin", "#recycle", "#snapshot", "~snapshot"),
    *("$recycle.bin", "recycler", "system volume information", "found.000", "lost+found", "__pycache__"),
    *("network trash folder", "temporary items", "thevolumesettingsfolder"),
)


def find(given: Sequence[str]) -> list[str]:
    """Return the image files for the given names, in order.

    A folder means all images in it and its subfolders. A glob pattern means its matches, and a text file
    (`.txt`) means the paths in its lines. `-` means the paths in the lines of standard input. Paths that do not
    exist are included. A path that is named twice, such as in a list, is returned twice. A path that is also in a
    folder, or matches a pattern, is returned once.
    """
    return list(each(given))


def each(given: Sequence[str], *conditions: Callable[[str], bool]) -> Iterator[str]:
    """Yield the paths of `find` that meet all conditions, one by one.

    The paths of a single folder are not kept in memory. Otherwise, they are, because a path may be found twice.
    """
    check_local(given)
    is_folder, exists = len(given) == 1 and os.path.isdir(given[0]), False
    first: list[str] = []
    seen: dict[str, bool] = {}  # path -> whether the user named it
    for path, is_named in _found(given):
        exists = exists or os.path.lexists(path)
        first += [path] * (len(first) < 5)
        if not all(condition(path) for condition in conditions) or not seen.get(path, True):
            continue
        if is_named or path not in seen:
            yield path
        if not is_folder:
            seen.setdefault(path, is_named)
    if first and not exists:
        raise FileNotFoundError(f"No such file or folder: {', '.join(first)}.")
    if given and not first:
        raise FileNotFoundError(
            f"Expected images in {', '.join(given[:5])}. Found none. Images in folders end in {', '.join(EXTENSIONS)}."
        )


def listed(given: Sequence[str], *conditions: Callable[[str], bool]) -> tuple[Iterator[str], int | None]:
    """Return the paths of `each`, and their number.

    The first 100,000 paths are listed at once. If there are more, they are listed while the caller uses the paths, and
    the number is None.
    """
    paths = each(given, *conditions)
    first = list(itertools.islice(paths, _AT_ONCE))
    return itertools.chain(first, paths), len(first) if len(first) < _AT_ONCE else None


def _found(given: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield each path that `find` finds, and whether the user named this path."""
    for name in given:
        matches = [] if os.path.exists(name) else sorted(glob.glob(name, recursive=True))
        files = [path for path in matches if not os.path.isdir(path)]
        is_list = name == "-" or name.lower().endswith(".txt") and os.path.isfile(name)
        for path in _lines(name) if is_list else files or matches or [name]:
            if os.path.isdir(path):
                yield from ((image, False) for image in _images_below(path))
            else:
                yield path, not matches


def check_local(names: Sequence[str]) -> None:
    """Raise a ValueError if a name is a remote URL."""
    for name in filter(file_io.is_remote, names):
        raise ValueError(f"Expected images in the file system. Received: {name!r}. Copy them, or mount the bucket.")


def _lines(name: str) -> Iterator[str]:
    """Yield the non-empty lines of a text file, or of standard input for `-`."""
    is_empty = True
    with contextlib.nullcontext(sys.stdin) if name == "-" else open(name, encoding="utf-8-sig") as file:
        try:
            for line in file:
                if line.strip():
                    is_empty = False
                    yield line.rstrip("\r\n")
        except UnicodeDecodeError:
            with open(name, "rb") as content:
                file_io.decode_text(content.read(), name)  # its error names the line
            raise
    if is_empty:
        raise ValueError(f"Expected the path of an image in each line of {name!r}. Received: no lines.")


def _is_image(path: str) -> bool:
    return path.lower().endswith(EXTENSIONS)


def _images_below(folder: str) -> Iterator[str]:
    """Yield the images in a folder and its subfolders. At the end, log which files are left out."""
    tree = Tree(folder)
    others: collections.Counter[str] = collections.Counter()
    for path in tree.walk(tree.root):
        if _is_image(path):
            yield os.path.join(folder, path)
        else:
            others[os.path.splitext(path)[1].lower()] += 1
    left_out = [f"{count:,} {ending or 'without an ending'}" for ending, count in others.most_common()]
    left_out += [f"the folder {name}" for name in tree.system] + [f"the link or pipe {name}" for name in tree.skipped]
    if left_out:
        logging.warning(
            "Left out in %s: %s. Images in folders end in %s.", folder, ", ".join(left_out[:20]), ", ".join(EXTENSIONS)
        )


class Tree:
    """Visible regular files and folders below a root, without links that could repeat files.

    The root is a folder or a URL such as `gs://bucket/images`.

    Attributes:
        skipped: Skipped links, and skipped files that are not regular, such as pipes. A link is skipped if it leads to
            a folder in the tree, a parent folder of the link or of the tree, or a top-level folder such as `/usr`.
        system: Names of the folders in `SYSTEM` that were found and skipped.
    """

    def __init__(self, root: str):
        self.root = root.removeprefix("file://").rstrip("/") or "/"
        self.skipped: dict[str, None] = {}
        self.system: dict[str, None] = {}
        self._real = os.path.realpath(self.root)

    def files(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""
        return self._list(folder)[0]

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder."""
        return self._list(folder)[1]

    def below(self, start: str) -> list[str]:
        """Return the relative paths of all files in a folder and its subfolders, sorted."""
        return list(self.walk(start))

    def walk(self, start: str) -> Iterator[str]:
        """Yield the paths of `below`. Each folder is listed when its first path is needed."""
        waiting, linked = [""], set[str]()
        while waiting:
            inner = waiting.pop()
            if inner and not inner.endswith("/"):
                yield inner
                continue
            folder = f"{start}/{inner}".rstrip("/")
            if folder != self.root and not file_io.is_remote(folder) and os.path.islink(folder):
                real = os.path.realpath(folder)
                shared = os.path.commonpath([real, self._real])
                around = os.path.commonpath([real, os.path.realpath(os.path.dirname(folder))])
                if real in linked or shared in (real, self._real) or around == real or real.count(os.sep) < 2:
                    self.skipped[folder] = None
                    continue
                linked.add(real)
            if inner.count("/") > MAX_DEPTH:
                raise ValueError(
                    f"Folders may nest {MAX_DEPTH} levels deep. Received: more below {start}/{inner[:60]}... Move the "
                    "images to a higher level."
                )
            files, inside = self._list(folder)
            names = sorted([*files, *(f"{name}/" for name in inside)], reverse=True)
            waiting += [inner + name for name in names]

    def _entries(self, folder: str) -> Iterator[tuple[str, str]]:
        """Yield each name in a folder with its kind: "file", "folder" or "special"."""
        if file_io.is_remote(folder):
            import tensorflow as tf  # only for URLs

            for name in tf.io.gfile.listdir(folder):
                name = name.rstrip("/")
                yield name, "folder" if tf.io.gfile.isdir(f"{folder}/{name}") else "file"
            return
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    entry.name.encode()
                except UnicodeEncodeError:
                    name = os.fsencode(entry.name)
                    raise ValueError(
                        f"Names must be UTF-8. Received: {name!r} in {folder!r}. Rename the file."
                    ) from None
                yield entry.name, _kind(entry)

    def _list(self, folder: str) -> tuple[list[str], list[str]]:
        """Return the names of the files and of the folders in a folder."""
        found: dict[str, list[str]] = {"file": [], "folder": [], "special": []}
        for name, kind in sorted(self._entries(folder)):
            if name.lower() in SYSTEM and kind == "folder":
                self.system[name] = None
            elif not name.startswith(".") and name != "__MACOSX":  # a folder in archives from macOS
                found[kind].append(name)
        self.skipped |= dict.fromkeys(f"{folder}/{name}" for name in found["special"])
        return found["file"], found["folder"]


def _kind(entry: os.DirEntry) -> str:
    try:
        if entry.is_dir():
            return "folder"
        # A broken or circular link counts as a file. The input pipeline will report that it cannot be read.
        return "file" if entry.is_file() or not os.path.exists(entry.path) else "special"
    except OSError:
        return "file"
