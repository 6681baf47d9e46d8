"""Tables of faults: methods, the packets that each loses, and the repair commands."""
