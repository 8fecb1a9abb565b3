"""Federated computation over arrays: tasks, cohorts, rounds and secure aggregation. It knows nothing of networks."""
