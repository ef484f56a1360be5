"""Support code of the tests: real servers, workloads, oracles, faults, forged input, lakes, processes, samples."""
