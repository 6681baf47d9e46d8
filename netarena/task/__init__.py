"""Interface of applications: queries, replies, tickets, labels and prompts."""
