"""A real federation: devices that keep their text, and a server that sums what they send, over Flower's Message API."""
