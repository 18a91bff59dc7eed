"""What leaves memory for a file while nobody needs it, and comes back just before somebody does."""
