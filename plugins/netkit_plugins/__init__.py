"""The plugins that ship with netkit: one module each, all of the same shape."""
