"""Code that several test suites share: environments, small packages, processes."""
