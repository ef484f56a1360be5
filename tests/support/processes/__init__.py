"""Our programs, started as users start them."""
