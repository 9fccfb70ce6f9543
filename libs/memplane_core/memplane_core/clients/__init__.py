"""One service as seen by another. The only importer of aiohttp."""
