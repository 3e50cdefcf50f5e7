"""Parts of `keras-vit launch`."""
