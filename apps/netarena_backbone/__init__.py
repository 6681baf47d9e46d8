"""The backbone application: agents repair a network of routers with OSPF and BGP."""
