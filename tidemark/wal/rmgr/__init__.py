"""Parsers for the bodies of WAL records, one module for each resource manager. They return immutable values."""

RM_XLOG = 0
RM_XACT = 1
RM_SMGR = 2
RM_DBASE = 4
RM_MULTIXACT = 6
RM_RELMAP = 7
RM_STANDBY = 8
RM_HEAP2 = 9
RM_HEAP = 10
RM_LOGICALMSG = 21
