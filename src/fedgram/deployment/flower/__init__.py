"""Everything that touches Flower: its apps, its processes, and faster ways through its internals."""
