"""Worlds (the contents of a namespace) as data: workloads, policies, and the traffic that the
policies allow."""
