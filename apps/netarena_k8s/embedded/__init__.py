"""The embedded cluster: an API server and a data plane on this machine."""
