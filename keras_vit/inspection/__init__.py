"""Looking into trained models and their runs."""
