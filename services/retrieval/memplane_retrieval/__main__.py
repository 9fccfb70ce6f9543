"""`python -m memplane_retrieval` serves it."""

from memplane_core.web.server import serve
from memplane_retrieval.settings import RetrievalSettings

if __name__ == "__main__":
    serve("memplane_retrieval.app:create_app", RetrievalSettings.load())
