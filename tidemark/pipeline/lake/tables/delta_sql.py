"""Names and values in the SQL of delta-rs."""


def quoted(name: str, alias: str = "") -> str:
    """Return `name` as an identifier in delta-rs's SQL."""
    identifier = '"' + name.replace('"', '""') + '"'
    return f"{alias}.{identifier}" if alias else identifier


def sql_time(since_1970_us: int) -> str:
    """Return a time in UTC as a literal in delta-rs's SQL."""
    return f"arrow_cast({since_1970_us}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
