"""`cdcctl decode --jobs`: ranges of WAL decoded by several processes, whose output is printed in order."""
