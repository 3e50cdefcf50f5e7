"""Order of sources that can only be read from front to back."""
