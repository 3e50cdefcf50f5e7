"""Estimates of the operations, memory and time of recipes, without measurements."""
