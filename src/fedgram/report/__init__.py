"""What people look at: figures and the report of a run."""
