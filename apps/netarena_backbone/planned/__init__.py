"""Change requests: planned changes on a live backbone; every step is judged."""
