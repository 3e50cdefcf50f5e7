"""`python -m keras_vit COMMAND` is the command `keras-vit COMMAND`."""

from keras_vit.program.commands import main

if __name__ == "__main__":
    main()
