"""A backbone: several routers that speak OSPF and BGP, beside autonomous systems of others."""
