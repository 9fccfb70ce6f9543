"""`python -m memplane_embedding` serves the embedding service."""

from memplane_core.web.server import serve
from memplane_embedding.settings import EmbeddingSettings

if __name__ == "__main__":
    serve("memplane_embedding.app:create_app", EmbeddingSettings.load())
