"""A fault campaign over a real node, its archive, both processes and a target; start with `campaign`."""
