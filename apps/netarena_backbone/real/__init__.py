"""Real backbones: routers with FRR's daemons, hosts with services, and their observation."""
