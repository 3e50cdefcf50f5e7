"""The report as one HTML file that contains its images, figures, scripts and styles."""

from keras_vit.inspection.page import html
from keras_vit.inspection.page._classes import Classes
from keras_vit.inspection.page._images import ImageCard, View
from keras_vit.inspection.page.render import Figure, Page, render

__all__ = ["Classes", "Figure", "ImageCard", "Page", "View", "html", "render"]
