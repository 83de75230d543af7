"""Builds and checks what a release publishes; ``make release-check`` starts it."""
