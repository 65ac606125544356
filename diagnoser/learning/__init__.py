"""Rules that the service learns: how they are written, tested, tried in shadow, loaded and exported."""
