"""What failures cost, what was done about them without a person, and what that saved. Pure."""
