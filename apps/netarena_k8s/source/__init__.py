"""Where worlds come from: drawn ones and those of a checkout."""
