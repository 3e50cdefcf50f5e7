"""Programs that train, evaluate, plan and inspect. Installed, they are `keras_vit.train`."""
