"""NetArena's core: engine, A2A protocol, sandbox and command line. It does not depend on any
application."""
