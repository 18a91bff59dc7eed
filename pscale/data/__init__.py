"""Where tokens and samples come from, and which rank gets which."""
