"""In-memory and Null implementations of the ports, and real parts started for tests."""
