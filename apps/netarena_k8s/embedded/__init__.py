"""The cluster that we bring: an API server and a data path on this machine."""
