"""Worlds as data: workloads, policies, and the traffic that the policies allow."""
