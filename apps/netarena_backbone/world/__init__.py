"""Backbones as data: data model, routing, forwarding and the intended state."""
