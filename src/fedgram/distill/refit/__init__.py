"""The federated refit: devices count n-grams that the server proposes, and the model is fitted to the sums."""
