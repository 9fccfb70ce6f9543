"""What the services of Memplane share: domain, contracts, stores, clients, security, observability."""
