"""The sidecar: the process that reads the node's stream and delivers in realtime."""
