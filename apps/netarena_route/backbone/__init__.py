"""Backbones: several routers that speak OSPF and BGP, next to neighbouring autonomous systems."""
