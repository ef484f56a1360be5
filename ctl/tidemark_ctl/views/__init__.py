"""Views of a state, a lake and an archive: trees of text, or JSON."""
