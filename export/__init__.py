"""Programs that export, verify, benchmark and serve. Installed, they are `keras_vit.export`."""
