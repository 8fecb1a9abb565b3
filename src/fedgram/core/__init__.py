"""What every layer stands on: arrays, errors, compiled kernels, random streams and storage."""
