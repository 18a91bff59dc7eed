"""Suites: a YAML file, validated whole, and the cases that it asks for on a machine."""
