"""The embedding service: texts to unit vectors, fairly and always to the same bytes."""
