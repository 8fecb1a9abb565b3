"""FederatedAveraging of networks: the task, its engine for many devices at once, and runs that can be resumed."""
