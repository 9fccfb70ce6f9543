"""Keys, their hashes, and the tokens that services trust each other by."""
