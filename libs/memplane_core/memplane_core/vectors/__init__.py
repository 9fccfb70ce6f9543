"""Milvus: a rebuildable index. The only importer of pymilvus."""
