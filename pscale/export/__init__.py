"""Recorded runs as the files of other tools: simulators, viewers of traces, fitting of models."""
