"""YAML in, cases out: load, validate, expand."""
