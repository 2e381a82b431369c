"""Records in, findings out. No torch here."""
