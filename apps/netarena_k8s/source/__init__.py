"""Sources of worlds: generators, and users' folders of manifests."""
