"""Tables of a study in every form. Nothing is computed here."""
