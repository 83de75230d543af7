"""Starting and stopping RPC: the implementation of the functions that replace torch's."""
