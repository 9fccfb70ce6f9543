"""What runs: each part's program, how to know that it is ready, and what must be there before it."""
