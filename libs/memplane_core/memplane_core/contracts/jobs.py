"""Every task's name and payload. Send only after the commit that gives it something to do."""

from typing import Final

TASK_DRAIN: Final = "memplane.index.drain"
"""Payload: `tenant` (UUID as string). Tells Milvus what the tenant's outbox holds."""

TASK_SWEEP: Final = "memplane.index.sweep"
"""No payload. Finds tenants with work that a lost kick left behind, and trims finished outbox rows."""

TASK_FOLD_ACCESS: Final = "memplane.access.fold"
"""No payload. Moves the access stream into `memory_usage`."""

TASK_RUN_JOB: Final = "memplane.jobs.run"
"""Payload: `tenant` and `job` (UUIDs as strings). Works on a job for a slice."""

TASK_SCHEDULE: Final = "memplane.jobs.schedule"
"""No payload. Begins the jobs that tenants' policies ask for and whose time has come."""

TASK_RETIRE: Final = "memplane.generations.retire"
"""Payload: `tenant` (UUID as string). Drops the generations whose time is over."""

TASK_RELEASE_IDLE: Final = "memplane.index.release_idle"
"""No payload. Takes collections that nobody has used for long out of Milvus's memory."""

TASK_WATCH_INDEX: Final = "memplane.index.watch"
"""No payload. Looks for collections that are lost or left over, and begins reconciles whose time has come."""

QUEUE_INDEX: Final = "index"
QUEUE_MAINTENANCE: Final = "maintenance"

ACCESS_STREAM: Final = "mp:access"
"""Valkey stream of recalls: fields `tenant`, `at` (epoch seconds), `ids` (comma-separated UUIDs)."""

KICK_PREFIX: Final = "mp:kick:"
"""Valkey key, one a tenant: a drain message is on its way."""

SENT_PREFIX: Final = "mp:sent:"
"""Valkey key, one a job or a tenant's retirement: a message about it is on its way."""

USES_KEY: Final = "mp:uses"
"""Valkey sorted set: names of collections by their last search or write that is known, in epoch seconds."""

BEAT_PREFIX: Final = "mp:beat:"
BEAT_LOCK: Final = f"{BEAT_PREFIX}:lock"
"""Valkey key of the broker: a beat is in charge."""
