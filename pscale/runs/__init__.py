"""The folder of a run: its documents, and the Parquet tables that jobs write and the analysis reads."""
