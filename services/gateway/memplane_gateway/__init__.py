"""The only public door: keys, scopes, tenant administration, documentation, forwarding. Holds no memory data."""
