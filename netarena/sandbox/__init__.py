"""Running what an agent sent; nothing else in this project does."""
