"""NetArena's core: engine, A2A protocol, sandbox and command line.

The core does not depend on any application.
"""
