"""Iterate over images, some of them unreadable, and end. `test_errors.py` starts it in a separate process.

python -m tests.data.exit_after_error FOLDER error|skip raise|break
"""

import sys

from keras_vit import data


def main(folder, on_bad_image, ending):
    source = data.open_source(f"folder:{folder}", "all")
    pp = "decode_jpeg_and_inception_crop(8)"
    batches = data.train_batches(source, pp, 4, on_bad_image=on_bad_image)
    if ending == "raise":
        list(batches)
    iterator = iter(batches)  # alive until the end
    try:
        next(iterator)
    except Exception as error:
        print(type(error).__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
