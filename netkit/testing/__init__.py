"""Public test kit: a mock GPU backend, scripted faults, and the conformance suite."""
