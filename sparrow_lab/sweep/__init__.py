"""A sweep: planned from its file, launched, watched, resumed. No torch, no MLflow."""
