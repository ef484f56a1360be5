"""A campaign of faults over a real node, its archive, both processes and a target; `campaign` has the story."""
