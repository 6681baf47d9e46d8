"""Backbones: several routers with OSPF and BGP, next to neighbouring autonomous systems."""
