"""Parts of `keras-vit launch`: one module for each place, with the templates of its files in `assets/`."""
