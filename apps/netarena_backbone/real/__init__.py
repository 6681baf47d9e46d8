"""Real backbones: routers that run FRR's daemons, hosts with services, and observations."""
