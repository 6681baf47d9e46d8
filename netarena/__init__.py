"""NetArena's core: engine, A2A protocol, sandbox and command line. It knows no application."""
