"""What is injected: the methods of fault as a table, and which hides which."""
