"""Secure aggregation: the server learns the sum of the devices' vectors, or nothing."""
