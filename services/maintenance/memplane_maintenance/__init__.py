"""Background work: tells the index what the outbox holds, and keeps memories in order. Celery workers and a beat."""
