"""The rows of changes in the columns of a log or replica."""
