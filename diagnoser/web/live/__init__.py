"""What all open pages of a process share: one look at the database for all of them."""
