"""Memplane on one machine: starts the embedded stores and the services, watches them, and stops them."""
