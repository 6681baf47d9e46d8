"""A backbone made real: routers with FRR's daemons, hosts with services, and one look at all."""
