"""Random weather on one client: `python -m tests.storm --seconds 60 --seed 1`."""
