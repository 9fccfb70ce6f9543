"""The stores that travel in wheels, Postgres and Valkey, run as children of the process that needs them."""
