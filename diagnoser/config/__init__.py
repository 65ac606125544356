"""Settings, the files of a site, and what is built from them."""
