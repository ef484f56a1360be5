"""The first copy of tables, and copies that an operator requests again."""
