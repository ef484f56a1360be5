"""Plug-ins of the daemons: consumers, transforms and serializers that the configuration names (docs/consumers.md)."""
