"""The report of an error to the operator: exit code, message and hint (I40)."""

from tidemark.model.errors import ExitCode, TidemarkError


def failure_of(error: TidemarkError | OSError) -> tuple[ExitCode, str, str]:
    """Return exit code, message and hint of an error."""
    if isinstance(error, TidemarkError):
        return error.exit_code, str(error), error.hint
    where = f"{error.filename}: " if error.filename else ""
    hint = "check permissions and free space, also those of the output"
    return ExitCode.UNEXPECTED, f"{where}{error.strerror or error}", hint
