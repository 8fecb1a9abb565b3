"""Training networks: federated averaging over devices, and central training on text that a server may see."""
