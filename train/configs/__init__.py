"""Recipes: each file has a `get_config` that returns one."""
