"""What the worker measures of itself. Labels have a handful of values each; none is a tenant."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

DRAINED_ROWS: Final = Counter(
    "memplane_maintenance_drain_rows_total", "Outbox rows closed, by what became of them.", labelnames=("outcome",)
)
DRAIN_BATCHES: Final = Counter(
    "memplane_maintenance_drain_batches_total", "Calls to the index and to the embedder.", labelnames=("op",)
)
DRAIN_FAILURES: Final = Counter(
    "memplane_maintenance_drain_failures_total", "Slices cut short, by what was in the way.", labelnames=("reason",)
)
DRAIN_SECONDS: Final = Histogram(
    "memplane_maintenance_drain_seconds",
    "Time that a slice of a tenant's drain took.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
TASK_SECONDS: Final = Histogram(
    "memplane_maintenance_task_seconds",
    "Time of tasks, by how they ended.",
    labelnames=("task", "outcome"),
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180),
)
HEARTBEAT: Final = Gauge(
    "memplane_maintenance_heartbeat_timestamp_seconds", "When the worker last looked at its parts, in epoch seconds."
)
BEAT_TICK: Final = Gauge(
    "memplane_maintenance_beat_tick_timestamp_seconds",
    "When this beat last went through its schedule.",
)
BEAT_IN_CHARGE: Final = Gauge("memplane_maintenance_beat_in_charge", "1 where this beat sends the periodic tasks.")
QUEUE_MESSAGES: Final = Gauge(
    "memplane_maintenance_queue_messages", "Messages that wait in the broker.", labelnames=("queue",)
)
ACCESS_LAG: Final = Gauge(
    "memplane_maintenance_access_lag_seconds", "Age of the oldest recall that is not in Postgres yet."
)
ACCESS_FOLDED: Final = Counter(
    "memplane_maintenance_access_folded_total", "Recalls taken from the access stream.", labelnames=("outcome",)
)
JOBS_ENDED: Final = Counter(
    "memplane_maintenance_jobs_ended_total", "Runs of jobs, by how they ended.", labelnames=("kind", "state")
)
JOBS_HELD_UP: Final = Counter(
    "memplane_maintenance_jobs_held_up_total",
    "Steps of jobs that have to be tried again, by what was in the way.",
    labelnames=("kind", "reason"),
)
JOB_SECONDS: Final = Histogram(
    "memplane_maintenance_job_seconds",
    "Time from when a job was asked for to its end.",
    labelnames=("kind", "state"),
    buckets=(1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600),
)
JOB_STEP_SECONDS: Final = Histogram(
    "memplane_maintenance_job_step_seconds",
    "Time that a step of a job took.",
    labelnames=("kind",),
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60),
)

LLM_QUESTIONS: Final = Counter(
    "memplane_maintenance_llm_questions_total", "Questions to the language model.", labelnames=("outcome",)
)
LLM_TOKENS: Final = Counter(
    "memplane_maintenance_llm_tokens_total", "Tokens that the language model's server counted.", labelnames=("of",)
)

DRIFTS: Final = ("missing", "unqueued", "wordless", "stale")
"""Rows that the index lacks; memories that were never embedded; those without words; rows that it should not hold."""

DRIFT_ROWS: Final = Counter(
    "memplane_maintenance_index_drift_rows", "Drift that reconciling found and mended.", labelnames=("direction",)
)
INDEX_WATCHED: Final = Gauge(
    "memplane_maintenance_index_watch_timestamp_seconds",
    "When this worker last compared collections with what Postgres knows, in epoch seconds.",
)
INDEX_COLLECTIONS: Final = Gauge(
    "memplane_maintenance_index_collections",
    "Collections that should not be there, should be and are not, or belong to nobody known here.",
    labelnames=("state",),
)
