"""Archived WAL: folders of segments, our spool, its ledger and its trimming."""
