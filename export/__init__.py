"""Programs that export, verify, benchmark and serve trained models."""
