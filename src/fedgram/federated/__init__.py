"""Federated computation over arrays: tasks, cohorts, rounds and what is measured of them. No networks here."""
