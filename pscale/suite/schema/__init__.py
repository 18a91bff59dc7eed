"""What a suite file may say: its fields, their types, ranges and defaults."""
