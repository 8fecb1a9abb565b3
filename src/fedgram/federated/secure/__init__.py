"""Secure aggregation: the server learns only the sum of the devices' vectors, or nothing."""
