"""What an application is: its interface, queries and replies, tickets, labels and prompts."""
