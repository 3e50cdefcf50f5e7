"""The report of a model as one HTML file that contains its images, figures, scripts and styles."""
