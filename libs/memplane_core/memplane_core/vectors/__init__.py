"""Milvus: a rebuildable index. The only importer of pymilvus, which costs 100 MB: import it where it is used."""

from memplane_core.vectors.faults import CollectionAbsent, CollectionNotLoaded
from memplane_core.vectors.index import MilvusIndex

__all__ = ["CollectionAbsent", "CollectionNotLoaded", "MilvusIndex"]
