"""Starts of a training on the places that `keras-vit launch` knows."""
