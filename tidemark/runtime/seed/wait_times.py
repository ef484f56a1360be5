"""How long a seed waits by default: apart from `seeding`, because the help of `cdcctl tail` prints it."""

WAIT_S_DEFAULT = 600.0
