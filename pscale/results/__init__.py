"""The contract between the job and the analysis: four Parquet tables of a run."""
