"""Backbones as data: model, routing, forwarding and the intended state."""
