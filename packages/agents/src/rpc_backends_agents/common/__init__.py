"""What backends on the agent share: secret and proofs, admission, strict options and variables."""
