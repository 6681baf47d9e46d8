"""The world as data: workloads, policies and what they let through."""
