"""What several test suites share: real environments, small real packages, processes."""
