"""The contract between the job and the analysis: a run's Parquet tables."""
