"""The report as one HTML file that needs no network: images, figures, script and style are inside."""

from keras_vit.inspection.page import html
from keras_vit.inspection.page.render import render
from keras_vit.inspection.page.sections import Classes, Figure, ImageCard, Page, View

__all__ = ["Classes", "Figure", "ImageCard", "Page", "View", "html", "render"]
