"""Whether the capture of a table ends or begins: it leaves the selection, or comes into it."""

from enum import Enum


class CaptureChange(Enum):
    """Whether a schema event ends or begins the capture of its table."""

    NONE = "none"
    ENDS = "ends"  # the table leaves the selection: of what follows, only its DROP is delivered
    BEGINS = "begins"  # earlier changes, and rows that exist, were not delivered; a copy may follow
