"""The core: engine, wire, sandbox and command line of NetArena; it knows no application."""
