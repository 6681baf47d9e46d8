"""What can be wrong with a backbone, as data: in words, as another world, as commands."""
