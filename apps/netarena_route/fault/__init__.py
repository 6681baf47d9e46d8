"""Tables of faults: methods, the packets that are lost, and the repair commands."""
