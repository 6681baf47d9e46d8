"""Interface of applications, with their queries, replies, tickets, labels and prompts."""
