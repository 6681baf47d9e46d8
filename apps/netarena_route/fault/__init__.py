"""Tables of faults: methods, the packets that each method loses, and the repair commands."""
