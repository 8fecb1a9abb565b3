"""All that touches Flower: its apps, its processes, and the shorter paths through its handlers."""
