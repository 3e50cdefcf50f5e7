"""`python -m keras_vit COMMAND`, equivalent to `keras-vit COMMAND`."""

from keras_vit.cli.commands import main

if __name__ == "__main__":
    main()
