"""Starting and stopping RPC: what our functions in the place of torch's do when they are called."""
