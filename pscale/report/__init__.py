"""Findings in, text and pictures out."""
