"""Measuring speed and counting cost."""
