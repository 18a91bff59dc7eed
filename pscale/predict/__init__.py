"""Predictions of a step on sizes and networks that were not measured, from the program and a profile."""
