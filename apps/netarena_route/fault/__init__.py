"""What is injected: the methods of fault as tables, what each breaks and how it is repaired."""
