"""`python -m memplane_maintenance worker|beat|migrate`."""

import sys

from memplane_maintenance.settings import BeatSettings, MaintenanceSettings, MigrationSettings

_USAGE = "usage: python -m memplane_maintenance worker|beat|migrate\n"


def main(arguments: list[str]) -> int:
    """Run the worker or the beat, or migrate the database; returns the exit code: 2 for other arguments."""
    match arguments:
        case ["worker"]:
            settings = MaintenanceSettings.load()
            from memplane_maintenance.worker import run_worker  # noqa: PLC0415 - a wrong setting is told at once

            return run_worker(settings)
        case ["beat"]:
            beat_settings = BeatSettings.load()
            from memplane_maintenance.beat import run_beat  # noqa: PLC0415 - the beat needs neither Milvus nor Postgres

            return run_beat(beat_settings)
        case ["migrate"]:
            migration_settings = MigrationSettings.load()
            from memplane_maintenance.migrate import run_migration  # noqa: PLC0415 - worker and beat never migrate

            return run_migration(migration_settings)
        case _:
            sys.stderr.write(_USAGE)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
