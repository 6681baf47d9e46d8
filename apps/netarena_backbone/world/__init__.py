"""Model of backbones: data, routing, forwarding and the intended state."""
