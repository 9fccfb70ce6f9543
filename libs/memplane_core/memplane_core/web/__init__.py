"""What every HTTP service does the same way: bodies, problems, request ids, health, serving."""
